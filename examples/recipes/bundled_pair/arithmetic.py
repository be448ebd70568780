"""Arithmetic: word problems, solved in steps that need one small fact each, and plain sums."""

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from sample import Sample
from stories import (
    COLOURS,
    CONTAINERS,
    MONEY,
    NAMES,
    THINGS,
    Story,
    amount,
    article,
    capital,
    change,
    ends,
    named,
    phrases,
    single,
    someone,
    start_and_add,
    take,
    then,
    things_of,
    third,
    two_numbers,
)
from sums import add, divide, multiply, subtract, sums
from wording import loosely

__all__ = ["NAMES", "THINGS", "arithmetic", "stories"]

SMALL = "zero one two three four five six seven eight nine ten eleven twelve".split()
OPENINGS = phrases("""Question:|Quick question:|Word problem:|Here is a word problem:
    Can you help me?
    Solve this:|Please solve this:|Help me with this:|My homework says:|A riddle:|Hi!|Hello!
    Hey,""")

# Places with what comes to them and what leaves them: things;place;come;go, now and before.
CROWDS = [
    line.split(";")
    for line in phrases("""birds;in a tree;come/came,fly in/flew in;fly away/flew away,leave/left
    birds;on a roof;join them/joined them,land/landed;fly off/flew off,fly away/flew away
    children;in a room;come in/came in,arrive/arrived;leave/left,go home/went home,go out/went out
    children;on a playground;come/came,join them/joined them;go home/went home,leave/left
    people;on a bus;get on/got on;get off/got off,leave/left
    passengers;in a train;get on/got on,enter/entered;get off/got off,leave/left
    cars;in a car park;arrive/arrived,come/came;leave/left,drive away/drove away
    cars;in a street;come/came,park there/parked there;drive off/drove off,leave/left
    ducks;on a lake;come/came,join them/joined them;swim away/swam away,fly away/flew away
    sheep;in a field;come/came,are born/were born;run away/ran away,are sold/were sold
    cows;on a farm;are bought/were bought,are born/were born;are sold/were sold,die/died
    guests;at a party;arrive/arrived,come/came;go home/went home,leave/left
    fish;in a pond;are put in/were put in,are born/were born;are caught/were caught,die/died
    ships;in a port;arrive/arrived,come in/came in;sail away/sailed away,leave/left
    bees;on a flower;come/came,land/landed;fly away/flew away,leave/left
    books;on a shelf;are added/were added,are put there/were put there;are taken/were taken
    eggs;in a basket;are added/were added,are put in/were put in;break/broke
    apples;in a bowl;are added/were added,are put in/were put in;are eaten/were eaten,rot/rotted
    apples;on a tree;grow/grew;fall down/fell down,are picked/were picked
    pears;in a box;are added/were added;go bad/went bad,are thrown away/were thrown away
    cakes;on a table;are added/were added;are eaten/were eaten,are sold/were sold
    balloons;at a party;are added/were added;burst/burst,fly away/flew away
    candles;on a cake;are added/were added;go out/went out,are blown out/were blown out
    lamps;in a hall;are switched on/were switched on;are broken/were broken,go out/went out
    players;on a field;come/came,join them/joined them;leave/left,are sent off/were sent off
    frogs;on a log;jump on/jumped on;jump off/jumped off,hop away/hopped away
    ants;on a leaf;come/came,arrive/arrived;crawl away/crawled away,leave/left
    monkeys;in a tree;climb up/climbed up,come/came;climb down/climbed down,run away/ran away
    toys;in a box;are put in/were put in;are taken out/were taken out,are lost/were lost
    visitors;in a museum;come in/came in,arrive/arrived;leave/left,go out/went out
    students;in a class;join/joined,arrive/arrived;are absent/were absent,leave/left
    leaves;on a branch;grow/grew;fall off/fell off,are blown away/were blown away
    bottles;on a wall;are added/were added;fall down/fell down,break/broke""")
]
CROWD_UP = phrases("""How many are there now?|How many {t} are there now?|How many {t} is that?
    How many are there altogether?|How many are there together?|How many {t} are there in total?
    How many are there in all?|What is the total?|How many {t} in all?|How many now?""")
CROWD_DOWN = phrases("""How many are left?|How many {t} are left?|How many stay?|How many remain?
    How many are still there?|How many {t} remain?|How many {t} are still there?|How many {t} stay?
    How many are there now?|How many {t} are there now?|How many {t} are left {p}?""")
RATES = [
    line.split(";")
    for line in phrases("""read;pages;day,evening,hour|walk;km;day,hour|earn;dollars;hour,day,week
    save;coins;week,month,day|draw;pictures;day,week,hour|learn;words;day,lesson,week
    write;letters;day,week,month|bake;cakes;day,hour|plant;trees;day,week|eat;apples;day,week
    run;km;day,week|sell;tickets;hour,day|drink;glasses;day|solve;puzzles;day,week,hour
    pay;euros;day,month,week|make;chairs;week,month|practise;minutes;day|get;points;game,round
    swim;minutes;day|collect;shells;day|paint;walls;day,week|cycle;km;day|feed;hens;day""")
]
PARTS = [
    line.split()
    for line in phrases("""dogs 4 legs|cats 4 legs|horses 4 legs|spiders 8 legs|ants 6 legs
    bees 6 legs
    cars 4 wheels|bikes 2 wheels|tricycles 3 wheels|hands 5 fingers|flowers 5 petals|birds 2 wings
    tables 4 legs|stools 3 legs|octopuses 8 arms|triangles 3 sides|squares 4 corners|boats 3 sails
    houses 6 windows|houses 4 doors|coats 7 buttons|shirts 6 buttons|rooms 3 lamps|trees 9 nests
    benches 4 seats|teams 11 players|teams 6 players|classes 12 children|weeks 7 days
    buses 10 seats|books 12 pages|flats 5 rooms|cakes 8 candles|trains 9 carriages""")
]
WHOLES = [
    line.split(";")
    for line in phrases("""in a class;children;girls;boys|in a choir;singers;women;men
    in a garden;flowers;roses;tulips|in a zoo;animals;birds;fish|on a farm;animals;cows;sheep
    in a bowl;fruits;apples;pears|on a shelf;books;novels;cookbooks|in a street;vehicles;cars;buses
    at a party;guests;adults;children|in a club;members;men;women|in a team;players;girls;boys
    in a pond;animals;fish;frogs|in a box;toys;cars;dolls|in a wood;trees;oaks;pines
    in a wallet;coins;pennies;dimes|in a village;people;adults;children""")
]
PAIRS = [
    line.split(";")
    for line in phrases("""on Saturday;on Sunday|on Monday;on Tuesday
    in the morning;in the afternoon
    yesterday;today|last week;this week|in May;in June|before lunch;after lunch|at home;at school
    in the first hour;in the second hour|on the first day;on the second day
    at noon;in the evening""")
]
DID = [
    line.split()
    for line in phrases("""sell sold|find found|collect collected|buy bought|count counted|see saw
    get got|make made|use used|order ordered|need needed|paint painted|pack packed|win won""")
]
KINDS_OF = [
    line.split(";")
    for line in phrases("""cats;dogs;animals|roses;tulips;flowers|apples;pears;fruits
    cars;buses;vehicles
    boys;girls;children|men;women;people|cows;sheep;animals|oaks;pines;trees|spoons;forks;pieces
    adults;children;people|hens;ducks;birds|novels;comics;books|chairs;tables;pieces
    red marbles;blue marbles;marbles|big boxes;small boxes;boxes|red pens;black pens;pens
    white eggs;brown eggs;eggs|old coins;new coins;coins|lemons;oranges;fruits""")
]
ROOM = [
    line.split(";")
    for line in phrases("""A book has {a} pages.;{who} {has} read {b}.;pages
    A bus has {a} seats.;{b} are taken.;seats|A cinema has {a} seats.;{b} are sold.;seats
    A hall has {a} chairs.;{b} of them are taken.;chairs
    The way is {a} km long.;{who} {has} walked {b} km.;km
    A film is {a} minutes long.;{who} {has} seen {b} minutes.;minutes
    A hotel has {a} rooms.;{b} are full.;rooms|A puzzle has {a} pieces.;{b} are in place.;pieces
    A lesson takes {a} minutes.;{b} minutes are over.;minutes
    A rope is {a} metres long.;{b} metres are cut off.;metres
    A tank holds {a} litres.;{b} litres are used.;litres
    A test has {a} questions.;{who} {has} answered {b}.;questions
    A train has {a} seats.;there are people on {b} of them.;seats
    A car park has {a} spaces.;{b} are taken.;spaces
    A trip is {a} km.;{who} {has} driven {b} km.;km
    A sack holds {a} kg of rice.;{who} take{s} out {b} kg.;kg""")
]
MEASURES = [
    line.split(";")
    for line in phrases("""is {n} cm tall;taller;cm;100;190|is {n} years old;older;years;4;90
    weighs {n} kg;heavier;kg;20;99|jumps {n} cm;further;cm;60;300|is {n} years old;older;years;4;60
    runs {n} km;further;km;3;40|has {n} points;better;points;5;90|walks {n} km;further;km;2;30""")
]
CROWD = phrases("""There {be} {a} {t} {p}. {Some} {verb}. {q}
    There {be} {a} {t} {p}. Then {some} {verb}. {q}
    {a} {t} {be} {p} and {some} {verb}. {q}|{a} {t} {be} {p}. {Some} {verb}. {q}
    {a} {t} {p}, {some} {verb}. {q}
    {P} there {be} {a} {t}. {Some} {verb}. {q}|If there {be} {a} {t} {p} and {some} {verb}, {ask}
    {q} There {be} {a} {t} {p} and {some} {verb}.|There {be} {a} {t} {p}, then {some} {verb}. {q}
    First there {be} {a} {t} {p}. Then {some} {verb}. {q}
    There {be} {a} {t} {p} before {some} {verb}. {q}""")
CROWD_OF = phrases("""Of {a} {t} {p}, {b} {verb}. {q}|{b} of the {a} {t} {p} {verb}. {q}
    How many of {a} {t} {p} are left if {b} {verb}?|From {a} {t} {p}, {b} {verb}. {q}""")
LEFT = phrases("""How many {t} are left?|How many are left?|How many {t} remain?|How many remain?
    How many {t} are still left?""")

HOW_MANY = phrases("""How many {t} is that?|How many {t} are there in all?|How many {t} are there?
    How many {t} are there altogether?|How many in total?|How many {t} are there in total?
    What is the total?|How many is that in all?|How many {t} in all?|How many {t} is that in total?
    How many {t} does that make?|What is the total number of {t}?""")
REMAIN = phrases("""How many are left?|How many {t} are left?|How many {t} remain?|How many remain?
    How many {t} is that then?|How many {t} are there then?|How many {t} are still there?""")
GROUPS = phrases("""{Who} {has} {a} {boxes} with {b} {t} in each. {q}
    {Who} {has} {a} {boxes}. In each {box} there are {b} {t}. {q}
    {Who} {has} {a} {boxes} of {b} {t}. {q}
    {Who} buy{s} {a} {boxes} of {b} {t} each. {q}
    There are {a} {boxes} and each {holds} {b} {t}. {q}
    There are {a} {boxes} with {b} {t} in each {box}. {q}|There are {a} {boxes} of {b} {t}. {q}
    There are {a} {boxes}. Each {box} {holds} {b} {t}. {q}|{a} {boxes}, {b} {t} in each. {q}
    Each {box} {holds} {b} {t}. There are {a} {boxes}. {q}|{a} {boxes} with {b} {t} each. {q}
    One {box} {holds} {b} {t}. How many {t} are in {a} {boxes}?
    A {box} {holds} {b} {t}. How many {t} do {a} {boxes} have?|{q} There are {a} {boxes} of {b} {t}.
    If there are {b} {t} in a {box}, how many {t} are in {a} {boxes}?
    How many {t} are in {a} {boxes} if each {holds} {b}?
    How many {t} are there in {a} {boxes} of {b}?
    {Who} fill{s} {a} {boxes} with {b} {t} each. {q}
    {Who} put{s} {b} {t} in each of {a} {boxes}. {q}
    {b} {t} fit in one {box}. How many {t} fit in {a} {boxes}?
    If {who} {has} {a} {boxes} with {b} {t} in each, how many {t} is that?""")
GROUPS_MORE = phrases("""{Who} {has} {a} {boxes} with {b} {t} in each and {c} more {t}. {q}
    {Who} {has} {a} {boxes} of {b} {t}. Then {he} get{s} {c} more. {q}
    There are {a} {boxes} with {b} {t} in each, and {c} more {t}. {q}
    There are {a} {boxes} with {b} {t} each. {c} more {t} lie beside them. {q}
    {Who} {has} {a} {boxes} of {b} {t} and {c} single {t}. {q}""")
GROUPS_LESS = phrases("""{Who} {has} {a} {boxes} with {b} {t} in each. {He} lose{s} {c}. {q}
    There are {a} {boxes} with {b} {t} each. {c} {t} are taken out. {q}
    There are {a} {boxes} of {b} {t}. {c} of the {t} are broken. {q}
    {Who} buy{s} {a} {boxes} of {b} {t} and give{s} away {c} of the {t}. {q}
    {Who} {has} {a} {boxes} of {b} {t}. {c} {t} are bad. {q}""")
RATE = phrases("""{Who} {verb} {b} {t} {every}. How many {t} is that in {a} {units}?
    {Who} {verb} {b} {t} {every}. How many {t} {does} {he} {base} in {a} {units}?
    {Who} {verb} {b} {t} {every} for {a} {units}. How many {t} is that in all?
    {Who} {verb} {b} {t} {every}. How many after {a} {units}?
    {a} {units}, {b} {t} {every}. How many {t}?
    If {who} {verb} {b} {t} {every}, how many {t} is that after {a} {units}?
    How many {t} {does} {who} {base} in {a} {units}, at {b} {t} {every}?
    For {a} {units}, {who} {verb} {b} {t} {every}. What is the total?
    {Every} {who} {verb} {b} {t}. How many is that in {a} {units}?""")
PART = phrases("""{One} has {b} {t}. How many {t} do {a} {units} have?
    {a} {units}, {b} {t} each. How many {t}?
    There are {a} {units}. Each has {b} {t}. How many {t} are there?
    How many {t} do {a} {units} have if each has {b}?
    How many {t} do {a} {units} with {b} {t} each have?
    If {one} has {b} {t}, how many {t} do {a} {units} have?
    {a} {units} have {b} {t} each. How many {t} is that in total?
    {One} has {b} {t}. {Who} see{s} {a} {units}. How many {t} is that?
    One of the {units} has {b} {t}. How many {t} do {a} {units} have together?""")
PRICE = phrases("""One {x} costs {b} {coin}. How much do {a} {t} cost?
    How much are {a} {t} at {b} {coin} each?
    One of the {t} costs {b} {coin}. How much do {a} {t} cost?
    {An} costs {b} {coin}. What do {a} {t} cost?
    {a} {t} cost {b} {coin} each. How much is that in all?
    {a} {t}, {b} {coin} each. How much in total?
    {Who} buy{s} {a} {t} for {b} {coin} each. How much {does} {he} pay?
    {Who} buy{s} {a} {t} at {b} {coin} a piece. What is the total?
    {Who} want{s} {a} {t}. Each costs {b} {coin}. How much is that?
    {Who} sell{s} {a} {t} for {b} {coin} each. How much money is that?
    If {an} costs {b} {coin}, how much do {a} {t} cost?
    What do I pay for {a} {t} if one costs {b} {coin}?
    The price of {an} is {b} {coin}. What is the price of {a} {t}?""")
CHANGE = phrases("""{An} costs {b} {coin}. {Who} pay{s} with {a}. How much change {does} {he} get?
    {Who} buy{s} {an} for {b} {coin} and pay{s} with {a} {coin}. How much {does} {he} get back?
    {Who} buy{s} {an} for {b} {coin}. {He} give{s} the seller {a} {coin}. What is the change?
    {Who} {has} {a} {coin} and buy{s} {an} for {b} {coin}. {q}
    {Who} {has} {a} {coin}. {An} costs {b}. How much is left after {he} buy{s} it?
    {Who} pay{s} with {a} {coin}. The {x} costs {b}. How much change is that?
    {Who} spend{s} {b} of {his} {a} {coin} on {an}. {q}
    How much change is there from {a} {coin} for {an} at {b} {coin}?""")
BUY_SOME = phrases("""
    {Who} buy{s} {a} {t} for {b} {coin} each and pay{s} with {c} {coin}. How much is the change?
    {Who} {has} {c} {coin} and buy{s} {a} {t} at {b} {coin} each. {q}
    {An} costs {b} {coin}. {Who} buy{s} {a} {t} and pay{s} with {c} {coin}. What is the change?
    {Who} {has} {c} {coin}. {He} buy{s} {a} {t} for {b} {coin} each. {q}""")
BOTH = phrases("""
    {An} costs {a} {coin} and {other} costs {b} {coin}. How much do they cost together?
    {Who} buy{s} {an} for {a} {coin} and {other} for {b}. How much {does} {he} pay in all?
    {Who} pay{s} {a} {coin} for {an} and {b} {coin} for {other}. What is the total?
    How much do {an} for {a} {coin} and {other} for {b} {coin} cost together?
    {An} costs {a} {coin}. {Other} costs {b} {coin}. How much is that in total?""")
BOTH_LEFT = phrases("""
    {Who} {has} {c} {coin}. {He} buy{s} {an} for {a} {coin} and {other} for {b}. {q}
    {Who} {has} {c} {coin} and pay{s} {a} for {an} and {b} for {other}. {q}""")
MONEY_REST = phrases("""How much money is left?|How much is left?
    How much money {does} {he} have left?
    How much {does} {he} have left?|What remains?|How much {does} {he} have now?""")
SHARE = phrases("""{Who} put{s} {n} {t} into {b} {boxes}, the same in each. How many go in each?
    {Who} share{s} {n} {t} over {b} {boxes}. How many {t} are in each?
    {Who} share{s} {n} {t} among {b} {people}. How many does each get?
    {b} {people} share {n} {t} equally. How many {t} does each one get?
    {n} {t} are shared equally by {b} {people}. How many {t} does each get?
    {Who} give{s} {n} {t} to {b} {people}, the same number to each. How many does each {person} get?
    {Who} divide{s} {n} {t} between {b} {people}. How many {t} per {person}?
    There are {n} {t} for {b} {people}. How many for each?
    {n} {t}, {b} {people}. How many for each {person}?
    If {b} {people} share {n} {t}, how many does each {person} get?
    How many {t} does each {person} get if {b} {people} share {n} {t}?
    {Who} split{s} {n} {t} into {b} equal groups. How many {t} are in each group?
    {n} {t} are in {b} {boxes}, the same number in each. How many {t} are in one {box}?
    {n} {t} lie in {b} equal rows. How many {t} are in each row?""")
FIT = phrases("""{n} {t} are packed in {boxes} of {b}. How many {boxes} are there?
    {Who} {has} {n} {t} and put{s} {b} in each {box}. How many {boxes} {does} {he} need?
    {b} {t} fit in a {box}. How many {boxes} do I need for {n} {t}?
    How many {boxes} are needed for {n} {t} if each holds {b}?
    {Who} pack{s} {n} {t}, {b} in each {box}. How many {boxes} is that?
    There are {n} {t}. Each {box} holds {b}. How many {boxes} are full?""")
WHOLE = phrases("""There are {a} {t} {p}. {b} are {x}, the rest are {y}. How many {y} are there?
    {P} there are {a} {t}. {b} of them are {x}. The others are {y}. How many {y} are there?
    Of {a} {t} {p}, {b} are {x} and the rest are {y}. How many are {y}?
    {P} are {a} {t}: {b} are {x}, all the others {y}. How many {y}?
    {P} are {a} {t}. {b} are {x}. How many {y} are there if all others are {y}?
    {b} of the {a} {t} {p} are {x}, the others are {y}. What is the number of {y}?""")
COLOURED = phrases("""{Who} {has} {a} {t}. {b} are {x}. How many are not {x}?
    {b} of {his} {a} {t} are {x}, the rest are {y}, {who} say{s}. How many are {y}?
    Of {a} {t}, {b} are {x} and the rest are {y}. How many {y} {t} are there?
    There are {a} {t}. {b} of them are {x} and the others {y}. How many {y} ones are there?
    {Who} {has} {a} {t}, {b} {x} and the rest {y}. How many {t} are {y}?""")
TOGETHER = phrases("""{Who} {verb} {a} {t} {p} and {b} {r}. {q}
    {P} {who} {verb} {a} {t}, {r} {b}. {q}
    {Who} {verb} {a} {t} {p}. {R} {he} {verb} {b}. {q}
    {P} {who} {verb} {a} {t} and {r} {b} more. {q}
    {q} {Who} {verb} {a} {t} {p} and {b} {r}.|{Who} {verb} {a} {t} {p} and {b} {t} {r}. {q}""")
TWO_PEOPLE = phrases("""{Who} {has} {a} {t} and {other} has {b}. How many do they have together?
    {Who} {has} {a} {t}. {Other} has {b} {t}. How many {t} are there?
    {Who} {has} {a} {t}, {other} {b}. {q}
    {Who} {has} {a} {t} and {other} has {b} {t}. {q}|{q} {Who} {has} {a} {t} and {other} has {b}.
    If {who} {has} {a} {t} and {other} has {b}, how many is that together?
    How many {t} do {who} and {other} have together if {who} {has} {a} and {other} has {b}?""")
TWO_KINDS = phrases("""There are {a} {x} and {b} {y}. How many {t} are there?
    {a} {x} and {b} {y}. How many {t}?
    I count {a} {x} and {b} {y}. How many {t} are there?
    {Who} see{s} {a} {x} and {b} {y}. How many {t} is that in all?
    {a} {x} and {b} {y} are how many {t}?
    How many {t} are {a} {x} and {b} {y} together?
    {Who} count{s} {a} {x} and {b} {y}. How many {t} in total?""")
DAYS = phrases("""{Who} {verb} {a} {t} on Monday, {b} on Tuesday and {c} on Wednesday. {q}
    {Who} {verb} {a} {t}, then {b} and then {c}. {q}
    {P} {who} {verb} {a} {t}, {r} {b}, and later {c}. {q}
    In three days {who} {verb} {a}, {b} and {c} {t}. {q}""")
MORE_THAN = phrases("""{Who} {has} {a} {t} and {other} has {b}. How many more {does} {again} have?
    {Who} {has} {a} {t} and {other} has {b}. How many fewer does {other} have?
    {Who} {has} {a} {t}. {Other} has {b} {t}. What is the difference?
    {Other} has {b} {t}, and {who} {has} {a}. How many more {t} {does} {again} have?
    How many more {t} {does} {who} have than {other} if {who} {has} {a} and {other} has {b}?
    {Who} {has} {a} {t}, but {other} has only {b}. How many {t} more {does} {again} have?
    There are {a} {t} here and {b} there. How many more are here?""")
RELATED = phrases("""
    {Other} has {a} {t}. {Who} {has} {b} {more} than {other}. How many {t} {does} {again} have?
    {Other} has {a} {t} and {who} {has} {b} {more}. How many {does} {again} have?
    {Who} {has} {b} {more} {t} than {other}, who has {a}. How many {t} {does} {again} have?
    If {other} has {a} {t} and {who} {has} {b} {more}, how many {does} {who} have?
    How many {t} {does} {who} have if {other} has {a} and {who} {has} {b} {more}?""")
MEASURED = phrases("""{Who} {x} and {other} {y}. How many {t} {more} is that?
    {Who} {x}. {Other} {y}. What is the difference?
    {Who} {x}, {other} {y}. By how much do they differ?""")
AGE = phrases("""{Who} {be} {a} years old. {Other} is {b} years {older}. How old is {other}?
    {Who} {be} {a}. {Other} is {b} years {older} than {them}. How old is {other}?
    How old is {other} if {who} {be} {a} and {other} is {b} years {older}?
    {Other} is {b} years {older} than {them}. {Who} {be} {a} years old. How old is {other}?
    {Who} {be} {a} years old and {other} is {b} years {older}. What is the age of {other}?""")
AGE_LATER = phrases("""{Who} {be} {a} years old. How old will {he} be in {b} years?
    How old will {who} be in {b} years if {he} {be} {a} now?
    Today {who} {be} {a}. How old will {he} be {b} years from now?
    {Who} {be} {a} now. How old will {he} be {b} years later?""")
AGE_BEFORE = phrases("""{Who} {be} {a} years old. How old {was} {he} {b} years ago?
    How old {was} {who} {b} years ago if {he} {be} {a} now?
    Today {who} {be} {a}. How old {was} {he} {b} years ago?""")
AS_MANY = phrases("""
    {Other} has {b} {t}. {Who} {has} {times} as many. How many {t} {does} {again} have?
    {Other} has {b} {t} and {who} {has} {times} as many. How many {does} {again} have?
    {Who} {has} {times} as many {t} as {other}, who has {b}. How many {t} {does} {again} have?
    If {other} has {b} {t} and {who} {has} {times} as many, how many is that?
    How many {t} {does} {who} have if {he} {has} {times} as many as {other}, who has {b}?""")
HALF = phrases("""{Who} {has} {n} {t} and give{s} away half of them. How many {t} are left?
    Half of the {n} {t} are {x}. How many are {x}?
    {Who} lose{s} half of {his} {n} {t}. How many {t} are left?
    {Who} {has} {n} {t}. Half of them are {x}. How many {x} {t} is that?
    There were {n} {t}. Half of them were sold. How many remain?
    {Other} has {n} {t}. {Who} {has} half as many. How many {t} {does} {who} have?""")
NEED = phrases("""{Who} need{s} {a} {t} and {has} {b}. How many more {does} {he} need?
    {Who} want{s} {a} {t}. {He} already {has} {b}. How many are missing?
    {Who} {has} {b} {t}. How many more {does} {he} need to have {a}?
    {Who} {has} {b} of {a} {t}. How many are missing?
    How many more {t} {does} {who} need to get {a} if {he} {has} {b}?
    {Who} had {b} {t}. Then {he} got some more and now {he} {has} {a}. How many did {he} get?
    {Who} had {a} {t}, lost some and now {has} {b}. How many did {he} lose?
    {Who} had {a} {t}. Now {he} {has} {b}. How many are gone?""")
AT_FIRST = phrases("""{Who} lost {a} {t} and now {has} {b}. How many did {he} have at first?
    {Who} gave away {a} {t} and {has} {b} left. How many {t} did {he} have before?
    After {who} sold {a} {t}, {he} {has} {b} left. How many were there at the start?""")


def fill(rng: Random, asks: list[str], **fields: object) -> str:
    """One of the phrasings with all its fields; a field in capitals starts a sentence."""
    known = {capital(name): capital(str(value)) for name, value in fields.items()}
    return rng.choice(asks).format(**{**known, **fields})


def crowd(rng: Random) -> Story:
    """Some of a crowd leave, or others join it."""
    things, place, come, go = rng.choice(CROWDS)
    up = rng.random() < 0.5
    a, b = two_numbers(rng, up)
    past = rng.random() < 0.4
    verb = rng.choice((come if up else go).split(",")).split("/")[past]
    more = (f"{b} more", f"{b} more {things}", f"another {b}")
    some = rng.choice(more if up else (f"{b}", f"{b} {things}", f"{b} of them"))
    q = rng.choice(CROWD_UP if up else CROWD_DOWN).format(t=things, p=place)
    asks = CROWD if up else CROWD + CROWD_OF
    be = "were" if past else "are"
    asked = q[0].lower() + q[1:]
    ask = fill(rng, asks, q=q, ask=asked, be=be, a=a, b=b, t=things, p=place, some=some, verb=verb)
    total = a + b if up else a - b
    steps = start_and_add(a, b, things) if up else take(a, b)
    return ask, steps, ends(up, total, things)


def factors(rng: Random) -> tuple[int, int]:
    """Two numbers of the multiplication table."""
    return rng.randint(2, 12), rng.randint(2, 12)


def each(a: int, groups: str, b: int, things: str) -> str:
    """The step of so many groups of b things."""
    return f"We multiply, because there are {a} {groups} with {b} {things} each. {multiply(a, b)}"


def container(rng: Random, things: str) -> dict[str, str]:
    """Something that holds these things."""
    boxes = rng.choice([other for other in CONTAINERS if other != things])
    holds = rng.choice(("holds", "has", "contains"))
    return {"boxes": boxes, "box": single(boxes), "holds": holds, "t": things}


def groups(rng: Random) -> Story:
    """Boxes with as many things in each; perhaps there are others or some are lost."""
    things = things_of(rng)
    f = {**someone(rng).fields(), **container(rng, things)}
    a, b = factors(rng)
    steps = each(a, f["boxes"], b, things)
    q = rng.choice(HOW_MANY).format(t=things)
    if rng.random() < 0.7:
        return fill(rng, GROUPS, **f, q=q, a=a, b=b), steps, ends(True, a * b, things)
    up = rng.random() < 0.6
    c = rng.randint(2, min(30, a * b - 1))
    q = q if up else rng.choice(REMAIN).format(t=things)
    ask = fill(rng, GROUPS_MORE if up else GROUPS_LESS, **f, q=q, a=a, b=b, c=c)
    total = a * b + c if up else a * b - c
    return ask, f"{steps} {then(a * b, up, c)}", ends(up, total, things)


def rate(rng: Random) -> Story:
    """So many a day, or so many parts of each."""
    a, b = factors(rng)
    who = someone(rng)
    if rng.random() < 0.35:
        units, number, things = rng.choice(PARTS)
        b = int(number)
        one = article(single(units))
        ask = fill(rng, PART, **who.fields(), a=a, b=b, units=units, t=things, one=one)
    else:
        base, things, periods = rng.choice(RATES)
        unit = rng.choice(periods.split(","))
        units = f"{unit}s"
        a_unit = f"{'an' if unit[0] in 'eh' else 'a'} {unit}"
        every = rng.choice((f"every {unit}", f"each {unit}", f"per {unit}", a_unit))
        verb = base if who.plain else third(base)
        names = {"a": a, "b": b, "units": units, "t": things, "every": every}
        ask = fill(rng, RATE, **who.fields(), **names, base=base, verb=verb)
    return ask, each(a, units, b, things), ends(True, a * b, things)


def price(rng: Random) -> Story:
    """What things of one price cost together, perhaps with the change."""
    coin = rng.choice(MONEY)
    things = things_of(rng)
    (a, b), who = factors(rng), someone(rng)
    an = article(single(things))
    f = {**who.fields(), "an": an, "x": single(things), "t": things, "coin": coin, "a": a, "b": b}
    steps = f"We multiply, because there are {a} {things} at {b} {coin} each. {multiply(a, b)}"
    if rng.random() < 0.7:
        return fill(rng, PRICE, **f), steps, ends(True, a * b, coin)
    paid = rng.choice([n for n in (10, 20, 50, 100, 150) if n > a * b])
    q = rng.choice(MONEY_REST).format(**who.fields())
    ask = fill(rng, BUY_SOME, **f, c=paid, q=q)
    back = f"Then we take {a * b} from {paid}. {subtract(paid, a * b)}"
    return ask, f"{steps} {back}", ends(False, paid - a * b, coin)


def money(rng: Random) -> Story:
    """The change, or two prices together."""
    coin, who = rng.choice(MONEY), someone(rng)
    x, y = (single(things) for things in rng.sample(THINGS, 2))
    q = rng.choice(MONEY_REST).format(**who.fields())
    f = {**who.fields(), "coin": coin, "an": article(x), "other": article(y), "x": x, "q": q}
    if rng.random() < 0.5:
        paid = rng.choice((10, 20, 50, 100, rng.randint(5, 99)))
        cost = rng.randint(2, paid - 1)
        ask = fill(rng, CHANGE, **f, a=paid, b=cost)
        return ask, take(paid, cost), ends(False, paid - cost, coin)
    a, b = rng.randint(2, 49), rng.randint(2, 49)
    if rng.random() < 0.6:
        return fill(rng, BOTH, **f, a=a, b=b), both(a, b), ends(True, a + b, coin)
    ask = fill(rng, BOTH_LEFT, **f, a=a, b=b, c=100)
    steps = f"{both(a, b)} Then we take {a + b} from 100. {subtract(100, a + b)}"
    return ask, steps, ends(False, 100 - a - b, coin)


def both(a: int, b: int) -> str:
    """The steps of two amounts together."""
    return f"We add {a} and {b}. {add(a, b)}"


def share(rng: Random) -> Story:
    """Things go to as many in equal parts, or into boxes of a size."""
    things = things_of(rng)
    people = rng.choice("children friends people boys girls students players families".split())
    f = {**someone(rng).fields(), **container(rng, things)}
    f |= {"people": people, "person": single(people)}
    b, every = factors(rng)
    n = b * every
    steps = f"We divide {n} {things} by {b}. {divide(n, b)}"
    if rng.random() < 0.7:
        return fill(rng, SHARE, **f, n=n, b=b), steps, f"Each gets {amount(every, things)}."
    return fill(rng, FIT, **f, n=n, b=b), steps, ends(True, every, f["boxes"])


def part(rng: Random) -> Story:
    """What is left of a whole without one of its parts."""
    a = rng.randint(5, 100)
    b = rng.randint(2, a - 2)
    if rng.random() < 0.5:
        place, things, x, y = rng.choice(WHOLES)
        x, y = rng.choice(((x, y), (y, x)))
        ask = fill(rng, WHOLE, p=place, t=things, x=x, y=y, a=a, b=b)
        return ask, take(a, b), ends(False, a - b, y)
    things, who = things_of(rng), someone(rng)
    x, y = rng.sample(COLOURS, 2)
    ask = fill(rng, COLOURED, **who.fields(), t=things, x=x, y=y, a=a, b=b)
    return ask, take(a, b), ends(False, a - b, things)


def rest(rng: Random) -> Story:
    """What is left of a book, a way or a room."""
    whole, done, things = rng.choice(ROOM)
    who = someone(rng)
    a = rng.randint(12, 100)
    b = rng.randint(2, a - 1)
    names = who.fields()
    q = rng.choice(LEFT).format(t=things)
    whole = whole.format(a=a)
    done = done.format(**names, b=b)
    asks = (
        f"{whole} {capital(done)} {q}",
        f"{whole} {capital(done)} {q}",
        f"{whole[:-1]} and {done} {q}",
        f"{whole[:-1]}, and {done} {q}",
        f"If {whole[0].lower()}{whole[1:-1]} and {done[:-1]}, {q[0].lower()}{q[1:]}",
        f"{q} {whole} {capital(done)}",
    )
    ask = rng.choice(asks)
    return ask, take(a, b), ends(False, a - b, things)


def together(rng: Random) -> Story:
    """Two or three amounts of two people, times or kinds together."""
    who = someone(rng)
    other = named(rng, but=who.name).name
    a, b, c = (rng.randint(2, 45) for _ in range(3))
    things = things_of(rng)
    place, later = rng.choice(PAIRS)
    base, past = rng.choice(DID)
    verb = past if rng.random() < 0.6 else base if who.plain else third(base)
    f = {**who.fields(), "other": other, "verb": verb, "p": place, "r": later}
    f |= {"a": a, "b": b, "t": things, "q": rng.choice(HOW_MANY).format(t=things)}
    way = rng.random()
    if way < 0.2:
        f["x"], f["y"], f["t"] = rng.choice(KINDS_OF)
        return fill(rng, TWO_KINDS, **f), both(a, b), ends(True, a + b, f["t"])
    if way < 0.35:
        steps = f"{both(a, b)} {then(a + b, True, c)}"
        return fill(rng, DAYS, **f, c=c), steps, ends(True, a + b + c, things)
    ask = fill(rng, TOGETHER if way < 0.7 else TWO_PEOPLE, **f)
    return ask, both(a, b), ends(True, a + b, things)


def compare(rng: Random) -> Story:
    """How many more somebody has, or what somebody has who has more than another."""
    who = someone(rng)
    other, things = named(rng, but=who.name).name, things_of(rng)
    a = rng.randint(5, 80)
    b = rng.randint(2, a - 1)
    f = {**who.fields(), "other": other, "t": things}
    way = rng.random()
    if way < 0.35:
        ask = fill(rng, MORE_THAN, **f, a=a, b=b)
    elif way < 0.6:
        says, more, things, low, high = rng.choice(MEASURES)
        a = rng.randint(int(low) + 1, int(high))
        b = rng.randint(int(low), a - 1)
        who = named(rng, but=other)
        x, y = says.format(n=a), says.format(n=b)
        ask = fill(rng, MEASURED, who=who.name, other=other, x=x, y=y, more=more, t=things)
    else:
        up = rng.random() < 0.5
        more = "more" if up else rng.choice(("fewer", "less"))
        b = rng.randint(2, min(a - 1, 20))
        ask = fill(rng, RELATED, **f, a=a, b=b, more=more)
        steps = start_and_add(a, b, things) if up else take(a, b)
        return ask, steps, ends(up, a + b if up else a - b, things)
    steps = f"We compare {a} and {b}. {subtract(a, b)}"
    return ask, steps, f"The difference is {amount(a - b, things)}."


def age(rng: Random) -> Story:
    """How old somebody is who is older or younger, or later or before."""
    who = someone(rng)
    while who.he == "we":
        who = someone(rng)
    a = rng.randint(5, 70)
    up = rng.random() < 0.5
    b = rng.randint(2, min(20, a - 1))
    f = {**who.fields(), "be": "am" if who.he == "I" else "is", "a": a, "b": b}
    f["them"] = "me" if who.he == "I" else who.name
    if rng.random() < 0.6:
        other = named(rng, but=who.name).name
        ask = fill(rng, AGE, **f, other=other, older="older" if up else "younger")
    else:
        ask = fill(rng, AGE_LATER if up else AGE_BEFORE, **f)
    steps = start_and_add(a, b, "years") if up else take(a, b)
    return ask, steps, ends(up, a + b if up else a - b, "years")


def as_many(rng: Random) -> Story:
    """Some times as many, or half."""
    who = someone(rng)
    other, things = named(rng, but=who.name).name, things_of(rng)
    f = {**who.fields(), "other": other, "t": things, "x": rng.choice(COLOURS)}
    a, b = factors(rng)
    if rng.random() < 0.4:
        n = 2 * b
        steps = f"We divide {n} {things} by 2. {divide(n, 2)}"
        return fill(rng, HALF, **f, n=n), steps, ends(True, b, things)
    a = 2 if rng.random() < 0.3 else a
    times = "twice" if a == 2 and rng.random() < 0.8 else f"{a} times"
    ask = fill(rng, AS_MANY, **f, b=b, times=times)
    steps = f"We multiply, because it is {a} times {b} {things}. {multiply(a, b)}"
    return ask, steps, ends(True, a * b, things)


def missing(rng: Random) -> Story:
    """What is missing to an amount, or what there was at first."""
    who, things = someone(rng), things_of(rng)
    if rng.random() < 0.25:
        a, b = rng.randint(2, 50), rng.randint(2, 50)
        ask = fill(rng, AT_FIRST, **who.fields(), t=things, a=a, b=b)
        return ask, both(a, b), ends(True, a + b, things)
    a = rng.randint(5, 100)
    b = rng.randint(2, a - 1)
    return (
        fill(rng, NEED, **who.fields(), t=things, a=a, b=b),
        take(a, b),
        ends(False, a - b, things),
    )


STORIES: tuple[tuple[Callable[[Random], Story], int], ...] = (
    (change, 10),
    (crowd, 3),
    (groups, 4),
    (rate, 3),
    (price, 3),
    (money, 3),
    (share, 3),
    (part, 2),
    (rest, 2),
    (together, 4),
    (compare, 3),
    (age, 2),
    (as_many, 2),
    (missing, 2),
)


def as_typed(rng: Random, ask: str) -> str:
    """The question as it is, with an opening, in small letters, or with words for numbers."""
    if rng.random() < 0.06:
        ask = f"{rng.choice(OPENINGS)} {ask}"
    if rng.random() < 0.05:
        ask = re.sub(r"\b([2-9]|1[0-2])\b", lambda found: SMALL[int(found[1])], ask)
        ask = re.sub(r"(^|[.?:] )([a-z])", lambda found: found[1] + found[2].upper(), ask)
    return ask.lower() if rng.random() < 0.1 else ask


def stories(rng: Random) -> Sample:
    """A word problem."""
    ask, steps, conclusion = rng.choices(*zip(*STORIES, strict=True))[0](rng)
    number = next(word for word in conclusion.rstrip(".").split() if word.isdigit())
    prompt = loosely(rng, as_typed(rng, ask))
    return Sample("arithmetic", prompt, steps, f"{steps}\n\n{conclusion}", conclusion, number)


def arithmetic(rng: Random) -> Sample:
    """A random calculation or word problem; its steps are in the answer, or in the thinking."""
    if rng.random() < 0.5:
        return stories(rng)
    sample = sums(rng)
    return replace(sample, prompt=loosely(rng, sample.prompt))
