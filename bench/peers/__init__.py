"""Services for peers, run by their own environments; not part of hybrid."""
