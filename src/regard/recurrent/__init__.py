"""What was there before attention, under the same roof: recurrent and convolutional stacks, and mixers for a block."""

from regard.recurrent import mixers as mixers
from regard.recurrent import stack as stack
from regard.recurrent.readers import Cell, Window
from regard.recurrent.stack import Recurrent

__all__ = ["Cell", "Recurrent", "Window"]
