"""The review dashboard: pages over history. Text from models and people is shown as plain text, never as markup."""
