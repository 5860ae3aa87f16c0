"""What the pages say, worked out from records: no page is drawn and nothing is read here."""
