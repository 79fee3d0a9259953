"""Recurrences: hap's own operators for recurrent layers, and the loss of sequences without alignment.

Letters: t steps, b samples, g gates of all hidden units, p and h hidden units before and after a projection; c classes,
s places of a target. Samples never mix. A step needs the whole state of the step before it, so nothing else is shared:
the products for all steps at once, which are, stand outside.
"""

from __future__ import annotations

from hap.rules.call import Rule, Table

RULES: Table = {
    "hap.lstm.default": Rule("t! b g!, b p!, b h!, g! p!, p! h! -> t! b p!, t! b h!"),
    "hap.lstm_backward.default": Rule(
        "+t! b p!, +t! b h!, t! b g!, b h!, g! p!, p! h!, t! b h! -> t! b g!, b p!, b h!, p! h!"
    ),
    "hap.gru.default": Rule("t! b g!, b p!, g! p!, g! -> t! b p!"),
    "hap.gru_backward.default": Rule("~t! b p!, t! b g!, t! b g!, t! b p!, g! p! -> t! b g!, t! b g!, b p!"),
    "hap.rnn.default": Rule("t! b g!, b p!, g! p! -> t! b g!"),
    "hap.rnn_backward.default": Rule("~t! b g!, g! p!, t! b g! -> t! b g!, b p!"),
    "hap.ctc_loss.default": Rule("t! b c!, b s!, b, b -> b"),
    "hap.ctc_loss_backward.default": Rule("~b, t! b c!, b s!, b, b -> t! b c!"),
}
