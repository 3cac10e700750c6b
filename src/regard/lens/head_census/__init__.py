"""Census: every attention head measured over a corpus in one pass, in a folder of plain files that can be resumed."""
