"""Words that end in a full stop without ending a sentence, in the ten languages of Qwen3-TTS.

Written without the full stop.  Korean, Chinese and Japanese have none.  A word that is also an
everyday word of another language ("no", "art", "es") is listed only where what follows tells.
Initials ("J. Doe", "z. B.") and dotted letters ("U.S.", "т.е.") follow rules in `segment`.
"""

from __future__ import annotations

__all__ = ["BEFORE_NUMBER", "BEFORE_ORDINAL", "MAY_END", "NEVER_END"]


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


# Something always follows: titles and the like, in the case they are written in.
NEVER_END = _words(
    "Mr Mrs Ms Mx Sr Messrs Mmes Dr Prof St Mt Ft Gen Col Capt Cmdr Lt Sgt Maj Adm Rev Hon Pres",
    "Gov Sen Rep Amb Supt Dept Univ vs approx incl viz",  # English
    "Hr Hrn Fr Dipl Ing bzw ca evtl ggf inkl exkl zzgl vgl bspw sog Mio Mrd Tsd Std Min Sek geb",
    "gest gegr verh Bhf Hbf",  # German
    "MM Mme Mmes Mlle Mlles Mgr Pr Ste Sts bd env cf av",  # French
    "Sra Srta Sres Sras Dra Dres Dña Av Avda Lic Excmo Excma Ilmo EE ej aprox Sto Sta",  # Spanish
    "Profa Exmo Exma Eng Srs Srta Cia Cel",  # Portuguese
    "sig Sig sigg Sigg sigra Sigra dott Dott dottssa Dottssa avv Avv Spett Egr Gent mons Mons",
    "geom rag",  # Italian
    "ул просп пер наб пл кв корп им тов гр проф акад доц напр см ср тыс млн млрд обл пос дер оз",
    "св ред изд соч г-н г-жа",  # Russian
)

# An abbreviation if a number follows, else an ordinary word.
BEFORE_NUMBER = _words(
    "no nos nr vol vols ch sec fig figs eq ref p pp ed art par ver",
    "jan feb mar apr jun jul aug sep sept oct okt nov dec dez mär",
    "abs kap bd abb aufl s tel chap pag pagg pág págs núm núms cap num séc",
    "рис табл гл стр т тт вып",
)

# Ends the sentence if a capital or a letter without case follows.
MAY_END = _words(
    "etc al inc ltd co corp bros llc jr ave blvd rd sq est",
    "usw usf str jh jhd",
    "uu ud uds vd vds",
    "ltda ecc",
    "др пр руб коп чел гг вв мин сек",
)

# German words before an ordinal: "am 3. Oktober", "im 19. Jahrhundert".
BEFORE_ORDINAL = _words(
    "am der die das dem den des vom zum zur im beim bis ab seit und oder jeder jede jeden jedes",
    "dieser diese dieses diesem diesen ihr sein mein unser sein seinem seinen ihrem ihren",
)
