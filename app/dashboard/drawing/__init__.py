"""What several pages draw alike: charts, tables, choices, forms."""
