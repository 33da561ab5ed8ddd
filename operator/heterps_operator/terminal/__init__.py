"""What people see at a terminal: tables, panels, plots and reports."""
