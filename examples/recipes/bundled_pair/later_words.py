"""What users write as second and third questions, in lower case and with a final mark."""

SUMS = {
    "plus": (
        "and plus {n}?|plus {n}|now add {n}.|add {n} to that.|what about plus {n}?|"
        "and if I add {n}?|and {n} more?|+ {n}|add {n} to it.|then {n} more, how many now?|"
        "{n} more come. how many now?|and with {n} more?|increase it by {n}."
    ).split("|"),
    "minus": (
        "and minus {n}?|minus {n}|take away {n}.|now subtract {n}.|"
        "take {n} from that.|and if I take away {n}?|and {n} less?|- {n}|"
        "subtract {n} from it.|then {n} are gone, how many now?|and without {n}?|"
        "then I use {n}. how many now?|reduce it by {n}."
    ).split("|"),
    "times": (
        "times {n}?|and times {n}?|now multiply by {n}.|multiply that by {n}.|"
        "what about times {n}?|and if I multiply it by {n}?|and {n} times that?"
    ).split("|"),
    "double": (
        "double it.|and twice that?|now double that.|and the double?|"
        "and if I double it?|what is twice as much?"
    ).split("|"),
    "half": (
        "and half of that?|half of it?|now halve it.|and the half?|"
        "what is half as much?|and divided by 2?"
    ).split("|"),
}
ANOTHER_SUM = (
    "and {}?|what about {}?|how about {}?|I meant {}.|sorry, I meant {}.|and now {}?|then {}?|"
    "ok, and {}?|thanks, and {}?|next: {}|now {}.|and what is {}?"
).split("|")
GUESS = (
    "I think it is {}.|I think it's {}.|is it not {}?|isn't it {}?|I say {}.|it is {}, isn't it?|"
    "I got {}.|my friend says {}.|should it not be {}?|so {}?"
).split("|")
ONWARD = (
    "and {0} that?|and the one {0} that?|and {0} that one?|what is {0} that?|and {0} it?".split("|")
)
ANY_FACT = ("and {}?|what about {}?|how about {}?|and for {}?|now {}.|{}?").split("|")
OTHER_FACT = {
    "capital": [*ANY_FACT, *"and of {}?|and the one of {}?|the same for {}.".split("|")],
    "country": [*ANY_FACT, *"and the country of {}?|the same for {}.".split("|")],
    "opposite": [*ANY_FACT, *"and of {}?|and the one of {}?|and the opposite of {}?".split("|")],
    "sound": (
        "and the {}?|what about the {}?|how about the {}?|and for the {}?|{}?|"
        "and what does the {} say?|now the {}."
    ).split("|"),
    "young": (
        "and of the {}?|what about the {}?|how about the {}?|and for the {}?|"
        "now the {}.|and the young {}?|{}?"
    ).split("|"),
    "count": [*ANY_FACT, *"and how many {}?|the same for {}.".split("|")],
    "length": [*ANY_FACT, *"and in {}?|and how many in {}?|the same for {}.".split("|")],
}
AROUND = (
    "and {}?|what about {}?|how about {}?|and the one {}?|and which comes {}?|now {}.|what is {}?"
).split("|")
ONE_WORD = (
    "now in one word.|in one word please.|one word please.|in a single word.|"
    "say it in one word.|can you say that in one word?|just one word."
).split("|")
ONLY_NUMBER = (
    "just the number.|only the number please.|the number only.|"
    "just the number please.|give me only the number.|can I have only the number?|"
    "say only the number.|number only.|just give me the number."
).split("|")
BRIEFLY = (
    "only the result.|short answer please.|just the answer.|only the answer please.|"
    "just the result please.|and the short answer?|give me only the answer."
).split("|")
SURE = (
    "are you sure?|really?|is that right?|is that correct?|is it really so?|"
    "are you certain?|is that true?"
).split("|")
AGAIN = (
    "say that again.|repeat please.|again please.|can you repeat that?|"
    "please say it again.|what was that?|sorry, what was the answer?|once more."
).split("|")
STEP = (
    "what is the {} step?|and the {} step?|which is the {} step?|"
    "tell me the {} step again.|the {} step please.|what was the {} step?|"
    "say only the {} step."
).split("|")
STEPS = (
    "how many steps are there?|how many steps are that?|and how many steps is that?|"
    "count the steps.|how many steps do I need?|what is the number of steps?"
).split("|")
OTHER_WAY = (
    "now the other way round.|and the other way round?|now backwards.|"
    "and in the other direction?|now turn it around.|reverse that.|and from the end?"
).split("|")
ITEM = (
    "which is the {}?|and the {} one?|what is the {} one?|the {} one please.|"
    "which one is the {}?|and which is the {} in it?|tell me the {} one."
).split("|")
LENGTH = (
    "how many are there?|how many are that?|and how many is that?|"
    "how long is the list?|count them.|how many are in it?"
).split("|")
RENAME = (
    "now call it {}.|please name it {}.|rename it to {}.|call the function {}.|"
    "use the name {} instead.|can you call it {}?|the name should be {}.|"
    "change the name to {}."
).split("|")
ARGUMENTS = (
    "which arguments does it take?|what arguments does it take?|what does it take?|"
    "which argument does it need?|what are the arguments?|and its arguments?|"
    "what do I pass to it?"
).split("|")
VALUE = (
    "what does it return for the example?|what does the example return?|"
    "and the value of the example?|what is the result of the example?|"
    "what comes out of the example?|what do I get in the example?"
).split("|")
TITLE = (
    "what is it called?|what is its name?|and the name of the function?|"
    "what is the function called?|how is it called?|which name does it have?"
).split("|")
INSIST = (
    "why not?|and now?|but try.|please try.|can you try again?|come on!|"
    "try it anyway.|are you sure?"
).split("|")
BACK = (
    "Back to my first question:|Back to the first one:|To my first question again:|"
    "Once more to the first question:|Now my first question again:|"
    "About my first question:"
).split("|")
THANKS = ("Thank you!", "Thanks")
VERBS = "get make find show work run do use new take give my our the one all".split()
NOUNS = (
    "total result value answer helper tool job task item thing number text word list data check "
    "fun test step line part sum count name rule"
).split()
ENDINGS = "of for it now all one two up out here 1 2 3".split()
