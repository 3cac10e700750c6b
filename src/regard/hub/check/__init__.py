"""Parity check of a published model here and in `transformers`: the same input, both outputs, and where they differ.

reference   the model in `transformers` and the inputs for both; the only file that imports it
layers      hidden states, layer by layer
parity      outputs in one dtype, and whether every tensor is saved as it was loaded
"""

from regard.hub.check.layers import LayerDifference, compare_layers
from regard.hub.check.parity import DTYPES, OutputParity, RoundTrip, check_round_trip, compare_outputs
from regard.hub.check.reference import (
    ProbeInput,
    build_probe,
    import_transformers,
    load_reference,
    reference_class,
    reference_outputs,
    transformers_version,
)

__all__ = [
    "DTYPES",
    "LayerDifference",
    "OutputParity",
    "ProbeInput",
    "RoundTrip",
    "build_probe",
    "check_round_trip",
    "compare_layers",
    "compare_outputs",
    "import_transformers",
    "load_reference",
    "reference_class",
    "reference_outputs",
    "transformers_version",
]
