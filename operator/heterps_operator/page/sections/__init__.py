"""The sections of pages: each a function from values to one `section` element."""
