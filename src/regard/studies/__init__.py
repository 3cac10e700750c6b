"""Studies: variants of a recipe trained on the same data, steps and seeds; scaling laws, demos.

regard compare shakespeare-nano model.kernel=reference,fused --seeds 2
"""

from regard.studies import complexity, in_context, loss_landscape, vit_vs_cnn
from regard.studies.comparison import StudyRun
from regard.studies.demo import DEMOS, DemoInterrupted, DemoSettings, run_demo
from regard.studies.head_history import HeadHistory, RoleHistory, role_history, track_head_roles
from regard.studies.study import (
    StudyPlan,
    StudyTable,
    StudyVariant,
    builtin_studies,
    expand_variants,
    load_study,
    study_from_keys,
)
from regard.studies.table import (
    MeanSpread,
    VariantRow,
    format_tables,
    rows_to_csv,
    study_results,
    variant_rows,
    write_results,
)
from regard.studies.training_sweep import SavedStep, TrainingSweep, saved_steps, stream_models, sweep_training
from regard.studies.tune import TuningRun

__all__ = [
    "DEMOS",
    "DemoInterrupted",
    "DemoSettings",
    "HeadHistory",
    "MeanSpread",
    "RoleHistory",
    "SavedStep",
    "StudyPlan",
    "StudyRun",
    "StudyTable",
    "StudyVariant",
    "TrainingSweep",
    "TuningRun",
    "VariantRow",
    "builtin_studies",
    "complexity",
    "expand_variants",
    "format_tables",
    "in_context",
    "load_study",
    "loss_landscape",
    "role_history",
    "rows_to_csv",
    "run_demo",
    "saved_steps",
    "stream_models",
    "study_from_keys",
    "study_results",
    "sweep_training",
    "track_head_roles",
    "variant_rows",
    "vit_vs_cnn",
    "write_results",
]
