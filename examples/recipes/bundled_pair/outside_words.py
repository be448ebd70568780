"""Words for questions outside the toy's world, words that do not exist, and how people ask."""

import re
from collections.abc import Callable, Sequence
from random import Random

from arithmetic import NAMES, THINGS
from everyday import CAPITALS, DAYS, MONTHS, OPPOSITES, SOUNDS, YOUNG
from wording import invented_word

INVENTED = 0.22  # share of the slots that get an invented word
SLOT = re.compile(r"\{(\w+)\}")


def phrases(text: str) -> list[str]:
    """The entries of a text, between bars or line ends."""
    return [part.strip() for part in re.split(r"[|\n]", text) if part.strip()]


TABLES = {
    "animal": """tiger elephant giraffe zebra monkey rabbit hamster camel kangaroo koala panda
    parrot penguin eagle hawk pigeon crow raven swan turkey peacock flamingo pelican stork robin
    whale dolphin shark seal otter beaver badger hedgehog squirrel mole bat rat lizard crocodile
    turtle tortoise salmon tuna trout octopus crab lobster snail spider beetle moth cricket ant wasp
    llama donkey buffalo hippo rhino leopard cheetah gorilla hyena ferret weasel scorpion gecko newt
    toad walrus puma jackal lemur sloth meerkat vulture seagull""".split(),
    "country": """Switzerland Brazil Mexico Argentina Colombia Venezuela Bolivia Ecuador Uruguay
    Paraguay Australia Indonesia Vietnam Malaysia Singapore Cambodia Laos Nepal Pakistan Bangladesh
    Mongolia Ukraine Romania Bulgaria Serbia Croatia Slovenia Slovakia Estonia Latvia Lithuania
    Iceland Luxembourg Malta Cyprus Morocco Algeria Tunisia Libya Nigeria Ethiopia Tanzania Uganda
    Rwanda Zambia Zimbabwe Angola Namibia Botswana Mozambique Madagascar Senegal Mali Niger Chad
    Sudan Somalia Jordan Lebanon Syria Israel Qatar Oman Yemen Kuwait Afghanistan Kazakhstan Armenia
    Georgia Albania Moldova Belarus Jamaica Haiti Panama Honduras Guatemala Nicaragua Belize Fiji
    Samoa Tonga Scotland Wales Texas Bavaria California Ontario Alaska Florida Sicily Tibet Atlantis
    Narnia""".split(),
    "city": """London Munich Hamburg Cologne Zurich Geneva Basel Milan Naples Venice Turin Barcelona
    Seville Valencia Lyon Marseille Nice Porto Krakow Amsterdam Rotterdam Antwerp Istanbul Mumbai
    Shanghai Osaka Kyoto Seoul Manila Jakarta Sydney Melbourne Perth Auckland Boston Chicago Dallas
    Houston Denver Seattle Miami Detroit Toronto Montreal Vancouver Bogota Caracas Quito Dubai
    Riyadh Beirut Damascus Casablanca Lagos Johannesburg Dakar Kiev Prague Zagreb Belgrade Sofia
    Riga Tallinn Vilnius Edinburgh Manchester Liverpool Leeds Bristol Oxford Philadelphia Phoenix
    Salzburg Bern Canberra Hanoi""".split(),
    "river": """Amazon Nile Danube Rhine Thames Seine Volga Ganges Mississippi Congo Niger Mekong
    Yangtze Elbe Tiber Loire Everest Kilimanjaro Alps Andes Himalayas Sahara Gobi Baltic Atlantic
    Pacific Caspian Vesuvius Etna Antarctica Mediterranean""".split(),
    "continent": """Europe Asia Africa America Oceania Scandinavia Siberia Arabia Polynesia
    Patagonia""".split(),
    "language": """German French Spanish Italian Dutch Portuguese Russian Polish Latin Greek Turkish
    Arabic Hebrew Hindi Japanese Chinese Korean Swedish Danish Finnish Welsh Irish Swahili Esperanto
    Hungarian Czech Thai Persian Klingon""".split(),
    "food": """pizza pasta soup rice bread cheese chocolate pancakes curry sushi lasagne stew chili
    burger risotto omelette porridge pudding cake cookies brownies waffles dumplings noodles tacos
    paella goulash ramen hummus falafel kebab quiche muffins jam yogurt honey butter steak bacon
    sausages ham potatoes carrots onions spinach broccoli cabbage mushrooms beans lentils peas
    pumpkin garlic ginger salmon shrimp tofu avocado strawberries blueberries bananas oranges
    pineapple coconut walnuts coffee lemonade cocoa beer wine cider vinegar mustard
    ketchup""".split(),
    "ingredient": """flour sugar salt pepper cinnamon vanilla basil oregano thyme rosemary parsley
    mint paprika turmeric cream milk eggs yeast oil lard almonds raisins oats cornmeal gelatine
    saffron nutmeg chives""".split(),
    "object": """table chair lamp sofa carpet curtain mirror clock door roof wall ladder hammer
    drill screwdriver saw nail rope bucket broom kettle fridge oven stove dishwasher toaster blender
    spoon fork knife plate bottle jar pillow blanket mattress towel brush comb razor umbrella
    suitcase wallet watch ring necklace coat jacket sweater shirt skirt scarf glove boot shoe belt
    guitar piano violin drum trumpet flute camera phone laptop tablet printer keyboard mouse screen
    speaker radio television bicycle motorbike car truck bus tram train boat ship kayak airplane
    helicopter rocket balloon tent torch compass map newspaper magazine notebook diary envelope pen
    ruler stapler scissors fence bench fountain bridge tunnel tower statue candle vase basket doll
    puzzle kite robot drone magnet battery cable engine wheel pump valve pipe tap sink bathtub
    shower toilet heater fan""".split(),
    "topic": """love friendship winter summer spring rain snow wind thunder fog sunshine night
    morning autumn freedom peace war justice hope fear courage anger envy money luck time space
    music dance art painting poetry religion politics school childhood family marriage travel work
    holidays sleep dreams memory death beauty silence loneliness magic dragons ghosts pirates robots
    princesses knights wizards vampires aliens dinosaurs volcanoes earthquakes rivers mountains
    forests deserts oceans islands castles gardens flowers trees stars planets clouds birthdays
    weddings football chess coffee chocolate computers internet democracy economics climate energy
    oil gold diamonds evolution honesty patience kindness traffic cities villages farming
    fishing""".split(),
    "concept": """gravity photosynthesis osmosis inflation entropy magnetism friction evolution
    electricity radiation fermentation erosion oxygen hydrogen helium carbon nitrogen iron copper
    uranium mercury plasma protein enzyme hormone virus bacterium antibody neuron atom molecule
    electron proton quark photon isotope catalyst acid mitosis gene chromosome cell tissue vitamin
    calcium insulin glucose cholesterol comet asteroid galaxy nebula pulsar quasar eclipse tide
    glacier tornado hurricane tsunami monsoon plankton fungus algae lichen fossil mineral granite
    quartz basalt limestone relativity thermodynamics inertia momentum velocity acceleration voltage
    frequency wavelength density viscosity metabolism ecosystem symbiosis capitalism socialism
    anarchy feudalism philosophy psychology sociology theology irony metaphor haiku algebra calculus
    topology statistics logarithm""".split(),
    "gadget": """computer smartphone microwave laser radar satellite telescope microscope
    thermometer barometer transistor microchip modem router server blockchain battery refrigerator
    engine turbine dynamo generator elevator parachute submarine helicopter printer scanner hologram
    antenna modulator solenoid sensor camera touchscreen bluetooth wifi gps vpn firewall browser
    database algorithm compiler kernel password cookie cloud chatbot transformer neuron dishwasher
    telephone zipper lock thermostat""".split(),
    "job": """doctor nurse teacher lawyer judge plumber electrician carpenter baker butcher farmer
    fisherman sailor pilot soldier detective firefighter engineer architect accountant banker
    salesman waiter cook barber tailor painter sculptor poet novelist journalist photographer actor
    singer dancer musician magician clown priest monk king queen emperor knight wizard pirate
    astronaut scientist chemist biologist historian philosopher librarian gardener vet dentist
    pharmacist psychologist therapist coach referee politician mayor president secretary manager
    programmer cleaner taxi-driver shopkeeper miner""".split(),
    "famous": phrases("""Einstein | Shakespeare | Marie Curie | Cleopatra | Beethoven | Churchill
    Newton | Napoleon | Aristotle | Columbus | Julius Caesar | Alexander the Great | Genghis Khan
    Mozart | Leonardo da Vinci | Michelangelo | Socrates | Van Gogh | Picasso | Lincoln | Galileo
    Gandhi | Ada Lovelace | Alan Turing | Dickens | Tolstoy | Joan of Arc | Queen Victoria | Mandela
    Darwin | Martin Luther King | Confucius | Goethe | Robin Hood | King Arthur | Dracula | Edison
    Plato | Buddha | Kafka | Tesla | Homer | Bach | Nero"""),
    "first": """Peter Susan Robert Karen Daniel Laura Michael Sandra Thomas Julia Martin Sophie
    George Helen Richard Monica Philip Clara Walter Irene Oscar Greta Victor Elena Ahmed Fatima
    Carlos Lucia Pierre Ingrid Kenji Yuki Ivan Olga Raj Priya""".split(),
    "last": """Miller Smith Johnson Brown Wilson Taylor Anderson Baker Carter Fischer Weber Schmidt
    Dubois Moreau Rossi Ferrari Garcia Lopez Silva Santos Novak Kowalski Petrov Ivanov Tanaka Suzuki
    Wang Chen Kim Park Singh Patel Khan Hansen Larsen Nilsson Virtanen Okafor Mensah Cohen Oduya
    Brandt Whitfield Harrow Langley""".split(),
    "event": phrases("""the French Revolution | the fall of the Berlin Wall | the Second World War
    the First World War | the Industrial Revolution | the Moon landing | the Roman Empire
    the Cold War | the Ottoman Empire | the battle of Waterloo | the Great Fire of London
    the Black Death | the Great Depression | the siege of {place} | the war of {year} | the Crusades
    the Renaissance | the revolution of {year} | the treaty of {place} | the battle of {place}
    the Reformation | the reign of {famous} | the {word} dynasty | the Spanish Armada | the pyramids
    the Middle Ages | the Boston Tea Party | the Bronze Age | the Great Wall | the Stone Age
    the Vikings | the gold rush | the Titanic"""),
    "thing_made": phrases("""the telephone | the printing press | the steam engine | the light bulb
    the wheel | the aeroplane | the telescope | the computer | the internet | the {object} | paper
    gunpowder | the {gadget} | the bicycle | the compass | penicillin | the zipper | the radio
    dynamite | the piano | ice cream | vaccines | football | the fork | X-rays | chess"""),
    "group": phrases("""colours | vegetables | mountains | countries | instruments | animals | trees
    fruits | desserts | flowers | planets | insects | rivers | cities | sports | painters | writers
    tools | inventors | car brands | board games | languages | drinks | hobbies | metals | dances
    birds | kinds of cheese | superheroes | shapes | islands | oceans | books | spices | dog breeds
    fish | reptiles | dinosaurs | elements | currencies | vitamins | mammals | organs | pasta shapes
    films | things that are round | things in a kitchen | words that start with B | reasons to smile
    songs | names for a {animal} | things to do in {place} | names for a {object} | kings | lakes
    jobs | things made of wood | facts about {topic} | gifts for a {job} | herbs | bones | gods"""),
    "single": phrases("""colour | vegetable | musical instrument | mountain | animal | dessert
    fruit | flower | planet | insect | river | sport | drink | painter | writer | language | metal
    tree | board game | car brand | dance | dog breed | mammal | reptile | chemical element | shape
    tool | currency | vitamin | superhero | hobby | island | organ | ocean | spice | gemstone | bird
    fish | philosopher | holiday | book | film | song | bone | lake | herb"""),
    "verb": """fold sell buy repair break move carry draw paint measure cut open close lock unlock
    hide find build assemble polish store lift hang install replace adjust sharpen decorate label
    ship insure rent borrow recycle melt freeze dry iron stitch glue bend weigh charge reset unplug
    sketch describe photograph restore throw catch climb ride steer park stop start tune sew knit
    varnish sand whistle dismantle""".split(),
    "adjective": """purple orange yellow brave lazy clever stupid ugly pretty gentle angry nervous
    proud shy funny serious ancient modern expensive cheap narrow wide deep shallow smooth rough
    sweet sour bitter salty sharp blunt tall heavy round square empty-handed careful reckless honest
    polite rude generous greedy patient hungry thirsty tired awake sick healthy famous unknown
    simple complicated noisy silent bright cloudy wooden golden tiny huge slippery fluffy mysterious
    invisible magical lonely cheerful grumpy alive boring interesting dangerous safe guilty innocent
    legal public private""".split(),
    "opposite": """brave clever ugly angry proud shy funny modern expensive narrow deep smooth sweet
    sharp tall heavy polite generous patient hungry tired healthy famous simple bright alive boring
    dangerous guilty legal public male left north inside love war begin arrive buy win push laugh
    remember always yes true up day summer friend teacher king black attack increase accept success
    victory ancient real visible awake crowded fragile lazy maximum optimist solid stale temporary
    tight vertical""".split(),
    "ailment": phrases("""a headache | a stomach ache | a sore throat | a broken arm | an allergy
    a cough | back pain | a toothache | diabetes | insomnia | migraine | an ear infection | a fever
    the flu | low blood pressure | a sprained ankle | food poisoning | a nosebleed | hay fever
    a cold | dizziness | measles | {word} disease | {word} syndrome | depression | anaemia | sunburn
    asthma | hiccups | a rash | a burn | cramps | stress | acne"""),
    "body": """knee elbow shoulder ankle wrist neck back stomach chest throat ear eye nose tooth
    tongue finger toe thumb hip heel skin liver kidney lung""".split(),
    "sport": """football basketball tennis volleyball rugby hockey golf cricket baseball boxing
    swimming rowing skiing cycling badminton handball karate judo fencing archery snooker darts
    surfing gymnastics wrestling marathon curling""".split(),
    "club": phrases("""Real Madrid | the Yankees | the Celtics | the {city} {adjective} {animal}s
    Bayern | {city} United | {city} City | Racing {city} | the national team of {place} | the Lakers
    Liverpool | Barcelona | the Bulls | FC {city} | Juventus | Arsenal | Ajax"""),
    "product": phrases("""a laptop | a washing machine | a coffee machine | running shoes | a camera
    a phone | a vacuum cleaner | a gaming console | a winter coat | headphones | a mattress | a bike
    a used car | an electric scooter | a birthday present | a {adjective} {object} | a {word} {n}
    a backpack | a pair of gloves | a rice cooker | sunglasses | a {object} | a watch | a drill
    a desk | a tent | a sofa"""),
    "unit": """metres kilometres miles feet inches yards centimetres millimetres kilograms grams
    pounds ounces tons litres gallons pints hectares acres knots joules calories watts volts seconds
    minutes hours weeks bytes megabytes gigabytes degrees Celsius Fahrenheit Kelvin furlongs fathoms
    teaspoons cups bars pascals lightyears""".split(),
    "currency": """dollars euros pounds yen francs rupees pesos roubles kroner zloty forints lira
    yuan bitcoins dinars rand""".split(),
    "code": """JavaScript Java Rust Go Ruby PHP Perl Kotlin Swift Haskell Scala Lua Fortran Cobol
    TypeScript Pascal Prolog Lisp Erlang Assembly MATLAB Bash C C++ C# SQL HTML CSS R
    Julia""".split(),
    "tool": """git docker kubernetes numpy pandas flask django react node linux bash vim emacs excel
    postgres mysql redis nginx pytest regex json xml yaml latex tensorflow pytorch jenkins ansible
    terraform grep sed awk make cmake npm pip cargo webpack""".split(),
    "task": phrases("""downloads a page | finds the shortest path in a graph | encrypts a text
    sends an email | checks if a number is prime | returns the average of a list | resizes an image
    reads a file | computes the n-th Fibonacci number | checks if a password is strong
    opens a window | removes duplicates from a list | returns the median of a list | solves a sudoku
    plays a song | converts a number to binary | counts the lines of a file | connects to a database
    draws a circle | shuffles a deck of cards | validates an email address | merges two dictionaries
    plots a graph | translates a text to {language} | computes the greatest common divisor
    parses a date | generates a random password | scrapes the prices of a shop | transposes a matrix
    rolls two dice | renames all files in a folder | computes the area of a circle | zips a folder
    flattens a nested list | returns the square root of a number | converts {unit} to {unit}
    prints today's date | finds the prime factors of a number | removes all spaces from a text
    does a binary search | checks if two words are anagrams | measures the time of a call
    trains a neural network | converts Roman numerals | {verbs} every {object} of a {object}
    reads a CSV file | multiplies two matrices | returns the {word} of a number | {verbs} a {object}
    writes a log | checks if a text is {adjective} | counts the {animal}s in a picture | plays chess
    starts a web server | sorts a list of {job}s by age | adds a {object} to a {object}
    joins two texts | checks if a number is {word} | splits a text into sentences | {word}s a number
    capitalizes every word | finds the {word} of a text | simulates a {object} | {word}s a list"""),
    "known_task": phrases("""adds {n} to a number | returns the largest number of a list
    reverses a list | computes the factorial of a number | turns a text into capital letters
    sorts a list of numbers | counts the vowels of a text | checks if a number is even
    sums a list of numbers | multiplies a number by {n} | squares a number | reverses a text"""),
    "other_how": phrases("""make coffee | boil potatoes | make pancakes | water a cactus | make soup
    make a cake | wash a sweater | wash the dishes | make lemonade | grow tomatoes | write a speech
    bake bread | write an essay | clean a carpet | clean an oven | clean my shoes | plant a tree
    cook rice | fix a broken chair | clean a fish tank | fix a leaking tap | sleep on a plane
    fry a fish | fix a computer | learn the guitar | learn to dance | wake up early | learn to swim
    wash my car | make a sandwich | make ice cream | wrap a burrito | wrap a bandage | wash my hair
    write a book | write a poem | ride a horse | fix my roof | learn maths | stop smoking
    write a CV | make friends | learn chess | make a kite | drive a car | catch a fish | find a flat
    tie a tie | build a shed | change a light bulb | paint a wall | fold a paper plane | lose weight
    find a job | throw a party | ask for a raise | sew a button | remove a stain | unclog a sink
    save money | start a fire | run a marathon | train a dog | groom a cat | quit my job | make soap
    get rich | boil a lobster | peel a mango | read faster | sharpen a knife | {verb} a {object}
    open a jar | {verb} a {adjective} {object} | {word} a {object} | make a {object} | jump higher
    play poker | {verb} my {object} | feed a {animal} | clean a {object} | become a {job}
    make a bed | learn {language} in a week | draw a {animal} | fix a {object} | get to {city}
    make cheese | cut a melon | make {food} | cook {food} | make wine | make glue"""),
    "other_why": phrases("""Why is the sky dark at night | Why do onions make us cry | Why do we cry
    Why is grass green | Why do stars twinkle | Why do dogs wag their tails | Why do cats hate water
    Why is snow white | Why do bees make honey | Why do fish have scales | Why do birds migrate
    Why is the sea blue | Why do zebras have stripes | Why does milk turn sour | Why does iron rust
    Why do we dream | Why does popcorn pop | Why does the sun shine | Why does wood burn
    Why do we yawn | Why does the moon change its shape | Why do we have leap years | Why do we age
    Why do we laugh | Why do trees have rings | Why do we wash our hands | Why do leaves turn red
    Why do we blush | Why do we get hungry | Why is sleep important | Why is reading good
    Why do dogs bark | Why do volcanoes erupt | Why is the desert dry | Why do airplanes fly
    Why is blood red | Why is {country} famous | Why do {animal}s live in groups | Why does ice melt
    Why does oil float | Why is the {animal} {adjective} | Why is the {object} {adjective}
    Why do we eat | Why does a {object} float | Why is {food} {adjective} | Why do {animal}s sleep
    Why is sugar sweet | Why do people like {topic} | Why does {concept} matter | Why is smoking bad
    Why is water wet | Why does the {object} shine | Why do we need {concept} | Why does {food} rise
    Why is fire hot | Why is my {object} {adjective} | Why is the {word} {word} | Why do ships float
    Why do {animal}s sing | Why does my {body} hurt | Why do we have {topic} | Why do {word}s {word}
    Why is {topic} good | Why is {sport} popular | Why do {job}s smile"""),
    "sentence": phrases("""The {animal} sat on the {object}. | My {job} lost the {object} yesterday.
    She don't like {food} very much. | The {adjective} {object} was sold for {n} {currency}.
    We went to {city} by {object} last {day}. | {topic} and {topic} are more important than {topic}.
    I has two {animal}s. | Nobody in {place} had ever seen a {animal} so {adjective}.
    He said that {topic} is {adjective}. | The company sells {adjective} {object}s in {place}.
    {first} {last} opened the {object} and smiled. | The {word} of {place} is known for its {food}.
    There was a {adjective} {job} in {city}. | They was eating {food} when the {object} fell down.
    The meeting is moved to {day} at {time}. | A {job} must be {adjective} and {adjective}.
    Our {object} does not work since {month}. | Please send me the {object} until {day}.
    {first} goed to school with a {object}. | It was a {adjective} day in {month}.
    I think {food} tastes {adjective}."""),
    "de": """Katzen Musik Wasser Schnee Politik Geschichte Vulkane Fische Liebe Fußball Physik
    Europa Autos Blumen Planeten Hunde Berlin Gemüse Kinder Wolken Technik Käse Schule
    Pferde""".split(),
    "fr": phrases("""les chats | les volcans | le football | la physique | les oiseaux | les étoiles
    la musique | les fleurs | le fromage | l'histoire | la guerre | la neige | le pain | l'école
    la mer | Paris"""),
    "es": phrases("""los gatos | los volcanes | los pájaros | las estrellas | la historia | la nieve
    la música | las flores | la escuela | el fútbol | la física | el queso | Sevilla | el mar
    el pan"""),
    "it": """gatti musica neve vulcani calcio fisica fiori formaggio uccelli mare pane stelle storia
    scuola Venezia amore montagne treni""".split(),
    "nl": """katten muziek sneeuw vulkanen voetbal natuurkunde bloemen kaas vogels fietsen brood
    sterren geschiedenis liefde treinen""".split(),
    "pt": """gatos música neve vulcões futebol física flores queijo pássaros pão estrelas história
    amor viagens livros""".split(),
    "app": """camera calendar mail browser music maps calculator gallery notes settings messages
    contacts torch clock radio podcast""".split(),
    "room": """kitchen bedroom bathroom garage hall office cellar garden attic balcony""".split(),
    "relative": """mother father sister brother aunt uncle grandmother grandfather cousin neighbour
    boss colleague girlfriend husband wife son daughter teacher landlord roommate""".split(),
    "feeling": """sad happy lonely tired bored angry nervous afraid jealous confused ashamed proud
    excited sick stressed hopeless homesick guilty""".split(),
    "genre": phrases("""poem | short story | fairy tale | limerick | dialogue | letter | speech
    song | bedtime story | love letter | blog post | slogan | horror story | ballad | sonnet | haiku
    joke | product description | sketch for the stage | birthday wish | diary entry | postcard | rap
    fable | nursery rhyme | headline | advert | riddle | tweet | essay | toast"""),
    "field": """history geography biology chemistry physics medicine law economics art music
    literature astronomy geology psychology grammar politics finance cooking sewing
    mathematics""".split(),
    "plain": """banana help why what yes no maybe ok stop test again more wow computer sunshine
    elephant football love pizza nothing everything tomorrow Monday red seven France python list sum
    function chess hmm ouch huh really lol cool nice interesting error undefined null asdf qwerty
    foo bar lorem please sorry what? no! why? and? so? ping start exit quit continue next wait
    go""".split(),
    "emoji": """😀 😂 😢 😡 ❤️ 👍 👎 🎉 🐶 🐱 🍕 🍎 🚗 ✈️ ⚽ 🎸 🌞 🌧️ ⭐ 🔥 :) :( ;-) :D <3 xD
    :-P ^^""".split(),
    "punctuation": "? ! ... ?? !!! . - -- ?!? ,,, ;; # @ * ** & % / // ~ () [] <> = +".split(),
}  # fmt: skip
KNOWN = {
    "name": NAMES,
    "thing": THINGS,
    "day": DAYS,
    "month": MONTHS,
    "known_country": list(CAPITALS),
    "known_city": list(CAPITALS.values()),
    "known_animal": sorted({*SOUNDS, *YOUNG}),
    "known_word": [*OPPOSITES, *OPPOSITES.values()],
    "sound": list(SOUNDS.values()),
    "young": list(YOUNG.values()),
}
TABLES["country"] = [c for c in TABLES["country"] if c not in CAPITALS]
TABLES["city"] = [c for c in TABLES["city"] if c not in CAPITALS.values()]
TABLES["opposite"] = [w for w in TABLES["opposite"] if w not in KNOWN["known_word"]]
EVERY_ANIMAL = [*TABLES["animal"], "wolf", "fox", "mouse", "goose", "goat", "hen", "bear", "deer"]
TABLES["silent"] = [a for a in EVERY_ANIMAL if a not in SOUNDS]
TABLES["childless"] = [a for a in [*EVERY_ANIMAL, "lion", "bee", "owl"] if a not in YOUNG]
ALWAYS_REAL = set(
    "language code tool unit currency other_how other_why task known_task sentence genre de fr es "
    "it nl pt plain emoji punctuation relative feeling app room field event group product ailment "
    "thing_made club single body".split()
)

BEFORE = phrases("""Hello! | My {relative} wants to know this. | I have a {adjective} problem. | Hi,
    Hey there. | This is for my {field} class. | I am a {job} from {city}. | Sorry to bother you.
    Excuse me. | I was thinking about {topic}. | My {job} told me about {topic}. | I'm new here.
    Good day. | I read about {topic} yesterday. | I'm in {place} right now. | You seem {adjective}.
    Listen. | I need this until {day}. | Let's try something. | Be honest. | Well, | Ok so | So,
    Now""")
AFTER = phrases("""Keep it short. | Don't use the word {entry}. | Answer in {count} words. | Thanks!
    Thank you in advance. | My {relative} says that you know it. | It is for my {relative}.
    I need it for {field}. | I asked a {job}, but got no answer. | Please be {adjective}.
    I am in a hurry. | Explain it to a {job}. | I really want to know. | You can use examples.
    Any idea? | Make it {adjective}. | Give me details. | Take your time. | No jokes.
    Be quick.""")
ASKING = phrases("""Can you {}? | Could you {}, please? | Could you {} for me? | I'd like you to {}.
    Please {}. | Can you please {}? | I want you to {}. | Help me to {}. | Would you {}?
    please {}""")
WONDERING = phrases("""Tell me: {} | I would like to know: {} | Can you tell me, {} | I wonder, {}
    Do you know: {} | Please tell me: {} | Maybe you know: {} | My question is: {} | Any idea {}""")
IMPERATIVE = re.compile(
    r"(Add|Compare|Compose|Correct|Describe|Define|Draw|Explain|Find|Fix|Give|Invent|List|Make|"
    r"Name|Order|Open|Paraphrase|Pick|Plan|Play|Rewrite|Show|Solve|Suggest|Summarise|Tell|"
    r"Translate|Write) "
)
SHORT_FORMS = (
    ("What is", "What's"),
    ("Who is", "Who's"),
    ("Where is", "Where's"),
    ("I am", "I'm"),
    ("does not", "doesn't"),
    ("It is", "It's"),
    ("I would", "I'd"),
)


def invented(rng: Random) -> str:
    """A word that does not exist, now and then with an English ending."""
    return invented_word(rng, english=0.3)


def letters(rng: Random, low: int = 4, high: int = 12) -> str:
    """Random keys, as someone hits them."""
    keys = rng.choice(("abcdefghijklmnopqrstuvwxyz", "asdfghjkl", "qwertzuiop", "xyz0123456789"))
    return "".join(rng.choice(keys) for _ in range(rng.randint(low, high)))


def spelt(rng: Random) -> str:
    """An English word of the tables, for questions about words."""
    return rng.choice(TABLES[rng.choice(("object", "topic", "adjective", "animal", "food", "job"))])


def third(verb: str) -> str:
    """The form of a verb that goes with he, she and it."""
    if verb.endswith("y") and verb[-2] not in "aeou":
        return f"{verb[:-1]}ies"
    return f"{verb}es" if verb.endswith(("ch", "sh", "x")) else f"{verb}s"


MAKERS: dict[str, Callable[[Random], str]] = {
    "word": invented,
    "Word": lambda rng: invented(rng).capitalize(),
    "entry": lambda rng: spelt(rng) if rng.random() < 1 - INVENTED else invented(rng),
    "place": lambda rng: f"{{{rng.choice(('country', 'city', 'known_country', 'known_city'))}}}",
    "person": lambda rng: rng.choice(("{first} {last}", "{famous}", "{Word} {Word}")),
    "full": lambda rng: rng.choice(("{first} {last}", "{first} {Word}", "{Word} {last}")),
    "why": lambda rng: f"w{rng.choice(TABLES['other_why'])[1:]}",
    "n": lambda rng: str(rng.randint(2, 99)),
    "over": lambda rng: str(rng.randint(13, 99)),
    "hundreds": lambda rng: str(rng.randint(100, 999)),
    "big": lambda rng: str(rng.randint(1000, 10 ** rng.randint(4, 7))),
    "digits": lambda rng: str(rng.randint(10, 10 ** rng.randint(2, 10))),
    "decimal": lambda rng: f"{rng.randint(0, 99)}.{rng.randint(1, 99)}",
    "fraction": lambda rng: f"{rng.randint(1, 9)}/{rng.randint(2, 12)}",
    "prime": lambda rng: str(rng.choice((7, 11, 13, 17, 19, 23))),
    "year": lambda rng: str(rng.randint(900, 2030)),
    "time": lambda rng: f"{rng.randint(1, 12)}:{rng.randrange(60):02}",
    "clock": lambda rng: f"{rng.randint(0, 23):02}:{rng.randrange(60):02}:{rng.randrange(60):02}",
    "keys": letters,
    "hex": lambda rng: f"{rng.getrandbits(40):x}",
    "letter": lambda rng: rng.choice("ABCDEFGHIJKLMNOPRSTUVW"),
    "count": lambda rng: rng.choice("two three four five six seven ten twelve 3 4 5 10".split()),
    "text": lambda rng: " ".join(["{sentence}"] * rng.choice((1, 1, 2, 2, 3, 3, 8))),
    "series": lambda rng: ", ".join(["{n}"] * rng.randint(3, 7)),
    "verbs": lambda rng: third(rng.choice(TABLES["verb"])),
    "line": lambda rng: "\n",
    "bar": lambda rng: "|",
}  # fmt: skip


def value(rng: Random, slot: str) -> str:
    """A word for a slot; it may have slots itself."""
    if slot in MAKERS:
        return MAKERS[slot](rng)
    if slot in KNOWN:
        return rng.choice(KNOWN[slot])
    table = TABLES[slot]
    if slot not in ALWAYS_REAL and rng.random() < INVENTED:
        word = invented(rng)
        return word.capitalize() if table[0][0].isupper() else word
    return rng.choice(table)


def fill(rng: Random, template: str) -> str:
    """The template with a word in each slot; equal slots that end in a digit get equal words."""
    kept: dict[str, str] = {}

    def chosen(match: re.Match[str]) -> str:
        slot = match[1]
        if slot[-1].isdigit():
            return kept.setdefault(slot, value(rng, slot[:-1]))
        return value(rng, slot)

    while SLOT.search(template):
        template = SLOT.sub(chosen, template)
    return template


def lowered(text: str) -> str:
    """The text as it goes on in a sentence; I and names in capitals stay."""
    return text if text[1:2] in "' " or text[1:2].isupper() else text[0].lower() + text[1:]


def phrased(rng: Random, prompt: str) -> str:
    """The same request with contractions, or more politely."""
    if rng.random() < 0.3:
        for long, short in SHORT_FORMS:
            prompt = prompt.replace(long, short)
    if rng.random() < 0.15 and "\n" not in prompt:
        if IMPERATIVE.match(prompt) and ". " not in prompt:
            return rng.choice(ASKING).format(lowered(prompt.rstrip(".")))
        if prompt.endswith("?") and prompt.startswith(("W", "H", "Is", "Do")):
            return rng.choice(WONDERING).format(lowered(prompt))
    return prompt


def framed(rng: Random, prompt: str, talk: Sequence[str]) -> str:
    """The request with sentences before or after it: mostly none, now and then much talk."""
    roll = rng.random()
    before = after = ""
    if roll < 0.03:
        before = " ".join(rng.choice(talk) for _ in range(rng.randint(3, 12)))
    elif roll < 0.11:
        before = rng.choice(BEFORE)
    if 0.09 < roll < 0.17:
        after = rng.choice(AFTER)
    return " ".join(part for part in (fill(rng, before), prompt, fill(rng, after)) if part)


def typed(rng: Random, prompt: str) -> str:
    """The text as people type it: not always with capitals, a last full stop or the right keys."""
    roll = rng.random()
    if roll < 0.15:
        prompt = prompt.lower()
    elif roll < 0.17:
        prompt = prompt.upper()
    if rng.random() < 0.2:
        prompt = prompt.rstrip(".?!") or prompt
    elif rng.random() < 0.02:
        prompt += rng.choice(("?", "!", "...", " please", " pls", " thx"))
    if rng.random() < 0.04 and len(prompt) > 8:
        at = rng.randrange(1, len(prompt) - 2)
        swapped = prompt[at + 1] + prompt[at]
        prompt = prompt[:at] + rng.choice((swapped, prompt[at], prompt[at] * 2)) + prompt[at + 2 :]
    return prompt
