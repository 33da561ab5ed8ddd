"""Terminal output: tables, panels, plots and reports."""
