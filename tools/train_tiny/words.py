"""Word lists and small tables of facts from which conversations.py builds its conversations. All written for lily."""

NAMES = """Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Mia Noah Olivia Paul Rosa Sam Tina Victor Wendy
Adam Alice Amy Andrew Angela Arthur Aisha Boris Bruno Carla Carlos Cecilia Chen Chloe Daniel Daria Diana Dora Edgar Elena Eli
Ella Eric Erik Eva Fatima Fiona Frank Fred Gabriel George Gina Hana Hannah Harry Hassan Helen Hugo Ida Ingrid Isaac Isabel Ivan
Jacob James Jana Jane Jasmine Jim Joan John Jonas Jorge Julia Karen Karim Karl Kevin Kim Lara Laura Lena Lewis Lina Linda Lisa
Louis Lucas Lucy Luis Luna Magda Marco Maria Mark Marta Martin Mary Matt Max Megan Michael Mila Mina Mohamed Monica Nadia Nancy
Nathan Nick Nina Nora Omar Oscar Otto Pablo Patrick Pedro Peter Petra Philip Quinn Rachel Ralph Raj Rebecca Rita Robert Robin
Roger Roman Ruby Ruth Ryan Sally Sandra Sara Simon Sofia Sonia Stefan Stella Steve Susan Sven Tanya Ted Theo Thomas Tim Tom Uma
Ursula Vera Vincent Walter Will Xenia Yara Yuki Yusuf Zara Zoe Milo Nico Priya Ravi Mei Kenji Aiko Lars Greta Anton Bella Cora
Dean Ethan Faye Gus Hector Irene Joel Kira Liam Maya Ned Opal Perry Rory Sasha Tara Umar Vito Wanda Yasmin Zane""".split()

PET_NAMES = """Rex Bella Max Luna Coco Buddy Daisy Rocky Milo Lucky Shadow Ginger Pepper Oreo Snowy Biscuit Tiger Smoky Patch
Pumpkin Waffles Maple Ziggy Nala Simba Cookie Bruno Misty Toby Socks Whiskers Fluffy Rusty Hazel Olive Peanut Storm Ruby""".split()

CITIES = """Paris London Berlin Madrid Rome Vienna Lisbon Dublin Oslo Stockholm Helsinki Copenhagen Warsaw Prague Budapest Athens
Amsterdam Brussels Zurich Geneva Milan Naples Venice Turin Munich Hamburg Cologne Frankfurt Dresden Lyon Marseille Nice Bordeaux
Barcelona Seville Valencia Porto Krakow Istanbul Ankara Moscow Kyiv Cairo Lagos Nairobi Tunis Rabat Casablanca Accra Dakar Tokyo
Osaka Kyoto Seoul Busan Beijing Shanghai Hanoi Bangkok Singapore Jakarta Manila Delhi Mumbai Chennai Karachi Lahore Dhaka
Kathmandu Tehran Baghdad Riyadh Dubai Doha Sydney Melbourne Perth Brisbane Auckland Wellington Toronto Montreal Vancouver Ottawa
Boston Chicago Denver Dallas Houston Seattle Miami Atlanta Phoenix Portland Detroit Austin Havana Bogota Lima Quito Santiago
Caracas Montevideo Brasilia Salvador Edinburgh Glasgow Manchester Liverpool Bristol Leeds Oxford Cambridge Cardiff Belfast
Reykjavik Tallinn Riga Vilnius Sofia Bucharest Belgrade Zagreb Ljubljana Bratislava Luxembourg Monaco Malta Bergen Gothenburg
Aarhus Turku Ghent Bruges Utrecht Rotterdam Graz Salzburg Basel Bern Genoa Bologna Florence Palermo Granada Malaga Bilbao""".split()
CITIES += ["New York", "Los Angeles", "San Francisco", "Cape Town", "Buenos Aires", "Mexico City", "Hong Kong", "Tel Aviv",
           "Rio de Janeiro", "Sao Paulo", "New Delhi", "Kuala Lumpur", "Addis Ababa", "Las Vegas", "San Diego", "Santa Fe"]

# country, capital, continent
COUNTRIES = [tuple(x.split("/")) for x in """France/Paris/Europe;Germany/Berlin/Europe;Italy/Rome/Europe;Spain/Madrid/Europe
Portugal/Lisbon/Europe;Austria/Vienna/Europe;Switzerland/Bern/Europe;Belgium/Brussels/Europe;the Netherlands/Amsterdam/Europe
Ireland/Dublin/Europe;the United Kingdom/London/Europe;Norway/Oslo/Europe;Sweden/Stockholm/Europe;Finland/Helsinki/Europe
Denmark/Copenhagen/Europe;Iceland/Reykjavik/Europe;Poland/Warsaw/Europe;Hungary/Budapest/Europe;Greece/Athens/Europe
the Czech Republic/Prague/Europe;Slovakia/Bratislava/Europe;Slovenia/Ljubljana/Europe;Croatia/Zagreb/Europe
Serbia/Belgrade/Europe;Romania/Bucharest/Europe;Bulgaria/Sofia/Europe;Ukraine/Kyiv/Europe;Russia/Moscow/Europe
Estonia/Tallinn/Europe;Latvia/Riga/Europe;Lithuania/Vilnius/Europe;Albania/Tirana/Europe;Japan/Tokyo/Asia;China/Beijing/Asia
India/New Delhi/Asia;South Korea/Seoul/Asia;Thailand/Bangkok/Asia;Vietnam/Hanoi/Asia;Indonesia/Jakarta/Asia
the Philippines/Manila/Asia;Malaysia/Kuala Lumpur/Asia;Nepal/Kathmandu/Asia;Pakistan/Islamabad/Asia;Bangladesh/Dhaka/Asia
Iran/Tehran/Asia;Iraq/Baghdad/Asia;Saudi Arabia/Riyadh/Asia;Turkey/Ankara/Asia;Mongolia/Ulaanbaatar/Asia;Jordan/Amman/Asia
Egypt/Cairo/Africa;Morocco/Rabat/Africa;Tunisia/Tunis/Africa;Algeria/Algiers/Africa;Kenya/Nairobi/Africa;Nigeria/Abuja/Africa
Ghana/Accra/Africa;Senegal/Dakar/Africa;Ethiopia/Addis Ababa/Africa;Uganda/Kampala/Africa;Rwanda/Kigali/Africa
Zambia/Lusaka/Africa;Canada/Ottawa/North America;the United States/Washington/North America;Mexico/Mexico City/North America
Cuba/Havana/North America;Jamaica/Kingston/North America;Panama/Panama City/North America;Brazil/Brasilia/South America
Argentina/Buenos Aires/South America;Chile/Santiago/South America;Peru/Lima/South America;Colombia/Bogota/South America
Ecuador/Quito/South America;Venezuela/Caracas/South America;Uruguay/Montevideo/South America;Paraguay/Asuncion/South America
Australia/Canberra/Oceania;New Zealand/Wellington/Oceania;Fiji/Suva/Oceania""".replace("\n", ";").split(";")]

# element, symbol, number
ELEMENTS = [(w.split(":")[0], w.split(":")[1], i + 1) for i, w in enumerate("""hydrogen:H helium:He lithium:Li beryllium:Be boron:B
carbon:C nitrogen:N oxygen:O fluorine:F neon:Ne sodium:Na magnesium:Mg aluminium:Al silicon:Si phosphorus:P sulfur:S chlorine:Cl
argon:Ar potassium:K calcium:Ca scandium:Sc titanium:Ti vanadium:V chromium:Cr manganese:Mn iron:Fe cobalt:Co nickel:Ni copper:Cu
zinc:Zn""".split())] + [("silver", "Ag", 47), ("tin", "Sn", 50), ("gold", "Au", 79), ("mercury", "Hg", 80), ("lead", "Pb", 82),
                        ("uranium", "U", 92), ("iodine", "I", 53), ("platinum", "Pt", 78)]

PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()

# animal, young, sound, legs, home
ANIMALS = [tuple(x.split("/")) for x in """dog/puppy/bark/4/kennel;cat/kitten/meow/4/house;cow/calf/moo/4/barn;horse/foal/neigh/4/stable
sheep/lamb/bleat/4/fold;pig/piglet/oink/4/sty;duck/duckling/quack/2/pond;hen/chick/cluck/2/coop;lion/cub/roar/4/den
frog/tadpole/croak/4/pond;goat/kid/bleat/4/barn;bear/cub/growl/4/cave;owl/owlet/hoot/2/nest;goose/gosling/honk/2/farm
wolf/pup/howl/4/den;bee/larva/buzz/6/hive;ant/larva/nothing/6/anthill;spider/spiderling/nothing/8/web
swan/cygnet/hiss/2/lake;kangaroo/joey/grunt/2/plain;deer/fawn/bellow/4/forest;elephant/calf/trumpet/4/savanna
donkey/foal/bray/4/stable;mouse/pup/squeak/4/hole""".replace("\n", ";").split(";")]

SHAPES = [("triangle", 3), ("square", 4), ("rectangle", 4), ("pentagon", 5), ("hexagon", 6), ("heptagon", 7), ("octagon", 8)]
UNITS = [("seconds", "minute", 60), ("minutes", "hour", 60), ("hours", "day", 24), ("days", "week", 7), ("months", "year", 12),
         ("days", "year", 365), ("weeks", "year", 52), ("years", "century", 100), ("years", "decade", 10),
         ("centimetres", "metre", 100), ("metres", "kilometre", 1000), ("grams", "kilogram", 1000), ("items", "dozen", 12),
         ("bits", "byte", 8), ("letters", "English alphabet", 26), ("players", "football team", 11), ("sides", "cube", 6)]
OPPOSITES = [tuple(x.split("/")) for x in """hot/cold big/small tall/short fast/slow old/new up/down left/right open/closed light/dark
happy/sad rich/poor strong/weak full/empty wet/dry early/late hard/soft clean/dirty loud/quiet good/bad near/far thick/thin
wide/narrow deep/shallow heavy/light high/low day/night black/white true/false young/old brave/afraid sweet/bitter sharp/dull
cheap/expensive easy/difficult first/last inside/outside begin/end push/pull buy/sell win/lose love/hate give/take
remember/forget sleep/wake arrive/leave""".split()]
AUTHORS = [tuple(x.split("/")) for x in """Hamlet/William Shakespeare;Don Quixote/Miguel de Cervantes;War and Peace/Leo Tolstoy
Pride and Prejudice/Jane Austen;Oliver Twist/Charles Dickens;Moby Dick/Herman Melville;Frankenstein/Mary Shelley;Dracula/Bram Stoker
Faust/Johann Wolfgang von Goethe;The Odyssey/Homer;The Divine Comedy/Dante Alighieri;Les Miserables/Victor Hugo
Treasure Island/Robert Louis Stevenson;Alice in Wonderland/Lewis Carroll;The Time Machine/H. G. Wells;Emma/Jane Austen
Crime and Punishment/Fyodor Dostoevsky;The Jungle Book/Rudyard Kipling;Robinson Crusoe/Daniel Defoe;Macbeth/William Shakespeare
Around the World in Eighty Days/Jules Verne;The Three Musketeers/Alexandre Dumas;Great Expectations/Charles Dickens
Peter Pan/J. M. Barrie;Pinocchio/Carlo Collodi;Heidi/Johanna Spyri""".replace("\n", ";").split(";")]
# question, answer, keyword
GENERAL = [tuple(x.split("|")) for x in """What is the largest planet in the solar system?|The largest planet in the solar system is Jupiter.|Jupiter
What is the smallest planet in the solar system?|The smallest planet in the solar system is Mercury.|Mercury
Which planet is called the red planet?|Mars is called the red planet.|Mars
What is the largest ocean on Earth?|The largest ocean on Earth is the Pacific Ocean.|Pacific
What is the longest river in Africa?|The longest river in Africa is the Nile.|Nile
What is the highest mountain on Earth?|The highest mountain on Earth is Mount Everest.|Everest
How many continents are there?|There are seven continents.|seven
At what temperature does water freeze?|Water freezes at 0 degrees Celsius.|0 degrees
At what temperature does water boil?|Water boils at 100 degrees Celsius.|100
What gas do plants take in from the air?|Plants take in carbon dioxide from the air.|carbon dioxide
What gas do people need to breathe?|People need oxygen to breathe.|oxygen
What is the chemical formula of water?|The chemical formula of water is H2O.|H2O
What do bees make?|Bees make honey.|honey
What do cows give us to drink?|Cows give us milk.|milk
What is the largest animal on Earth?|The largest animal on Earth is the blue whale.|blue whale
What is the fastest land animal?|The fastest land animal is the cheetah.|cheetah
What is the tallest animal?|The tallest animal is the giraffe.|giraffe
Which star is closest to the Earth?|The star closest to the Earth is the Sun.|Sun
What goes around the Earth at night and gives light?|The Moon goes around the Earth.|Moon
Who painted the Mona Lisa?|Leonardo da Vinci painted the Mona Lisa.|Leonardo
Who discovered gravity when an apple fell?|Isaac Newton is said to have thought of gravity when an apple fell.|Newton
Who developed the theory of relativity?|Albert Einstein developed the theory of relativity.|Einstein
Who discovered penicillin?|Alexander Fleming discovered penicillin.|Fleming
Who invented the telephone?|Alexander Graham Bell invented the telephone.|Bell
Who was the first person on the Moon?|Neil Armstrong was the first person on the Moon.|Armstrong
Who invented printing with movable type in Europe?|Johannes Gutenberg invented printing with movable type in Europe.|Gutenberg
What color do you get when you mix blue and yellow?|Blue and yellow make green.|green
What color do you get when you mix red and yellow?|Red and yellow make orange.|orange
What color do you get when you mix red and blue?|Red and blue make purple.|purple
What color do you get when you mix red and white?|Red and white make pink.|pink
What color do you get when you mix black and white?|Black and white make gray.|gray
What color is the sky on a clear day?|The sky is blue on a clear day.|blue
What color is grass?|Grass is green.|green
What color is snow?|Snow is white.|white
What color is a ripe banana?|A ripe banana is yellow.|yellow
How many legs does a spider have?|A spider has eight legs.|eight
How many days are in a leap year?|A leap year has 366 days.|366
How many seasons are there in a year?|There are four seasons: spring, summer, autumn and winter.|four
Which season comes after winter?|Spring comes after winter.|Spring
Which season comes after summer?|Autumn comes after summer.|Autumn
In which direction does the sun rise?|The sun rises in the east.|east
In which direction does the sun set?|The sun sets in the west.|west
What instrument has 88 keys?|The piano has 88 keys.|piano
How many strings does a violin have?|A violin has four strings.|four
How many players are there in a football team?|A football team has eleven players.|eleven
What is frozen water called?|Frozen water is called ice.|ice
What do you call a baby cat?|A baby cat is called a kitten.|kitten
What language is spoken in Brazil?|Portuguese is spoken in Brazil.|Portuguese
What language is spoken in Austria?|German is spoken in Austria.|German
What language is spoken in Mexico?|Spanish is spoken in Mexico.|Spanish
What is the currency of Japan?|The currency of Japan is the yen.|yen
What is the currency of the United Kingdom?|The currency of the United Kingdom is the pound.|pound
What is the currency of the United States?|The currency of the United States is the dollar.|dollar
What is the currency of France?|The currency of France is the euro.|euro
What is the hardest natural substance?|The hardest natural substance is diamond.|diamond
Who wrote the play Romeo and Juliet?|William Shakespeare wrote Romeo and Juliet.|Shakespeare
What is the center of an atom called?|The center of an atom is called the nucleus.|nucleus
Which organ pumps blood?|The heart pumps blood.|heart
Which organ do we think with?|We think with the brain.|brain
What does a doctor do?|A doctor helps people who are ill.|ill
What does a baker make?|A baker makes bread.|bread
What do we use to tell the time?|We use a clock to tell the time.|clock
What is a young dog called?|A young dog is called a puppy.|puppy
What is the first letter of the alphabet?|The first letter of the alphabet is A.|A
What is the last letter of the alphabet?|The last letter of the alphabet is Z.|Z""".split("\n")]

# English, French, German, Spanish
TRANSLATIONS = [tuple(x.split("/")) for x in """house/maison/Haus/casa;dog/chien/Hund/perro;cat/chat/Katze/gato;bird/oiseau/Vogel/pájaro
fish/poisson/Fisch/pez;horse/cheval/Pferd/caballo;cow/vache/Kuh/vaca;tree/arbre/Baum/árbol;flower/fleur/Blume/flor
sun/soleil/Sonne/sol;moon/lune/Mond/luna;star/étoile/Stern/estrella;water/eau/Wasser/agua;fire/feu/Feuer/fuego
bread/pain/Brot/pan;milk/lait/Milch/leche;cheese/fromage/Käse/queso;apple/pomme/Apfel/manzana;egg/oeuf/Ei/huevo
meat/viande/Fleisch/carne;salt/sel/Salz/sal;sugar/sucre/Zucker/azúcar;wine/vin/Wein/vino;coffee/café/Kaffee/café
tea/thé/Tee/té;book/livre/Buch/libro;table/table/Tisch/mesa;chair/chaise/Stuhl/silla;door/porte/Tür/puerta
window/fenêtre/Fenster/ventana;bed/lit/Bett/cama;kitchen/cuisine/Küche/cocina;garden/jardin/Garten/jardín
street/rue/Straße/calle;city/ville/Stadt/ciudad;country/pays/Land/país;school/école/Schule/escuela
teacher/professeur/Lehrer/profesor;friend/ami/Freund/amigo;man/homme/Mann/hombre;woman/femme/Frau/mujer
child/enfant/Kind/niño;boy/garçon/Junge/chico;girl/fille/Mädchen/chica;mother/mère/Mutter/madre;father/père/Vater/padre
brother/frère/Bruder/hermano;sister/soeur/Schwester/hermana;king/roi/König/rey;queen/reine/Königin/reina
hand/main/Hand/mano;head/tête/Kopf/cabeza;eye/oeil/Auge/ojo;ear/oreille/Ohr/oreja;nose/nez/Nase/nariz;mouth/bouche/Mund/boca
heart/coeur/Herz/corazón;day/jour/Tag/día;night/nuit/Nacht/noche;morning/matin/Morgen/mañana;week/semaine/Woche/semana
month/mois/Monat/mes;year/année/Jahr/año;hour/heure/Stunde/hora;today/aujourd'hui/heute/hoy;tomorrow/demain/morgen/mañana
red/rouge/rot/rojo;blue/bleu/blau/azul;green/vert/grün/verde;yellow/jaune/gelb/amarillo;white/blanc/weiß/blanco
black/noir/schwarz/negro;big/grand/groß/grande;small/petit/klein/pequeño;good/bon/gut/bueno;bad/mauvais/schlecht/malo
new/nouveau/neu/nuevo;old/vieux/alt/viejo;hot/chaud/heiß/caliente;cold/froid/kalt/frío;happy/heureux/glücklich/feliz
one/un/eins/uno;two/deux/zwei/dos;three/trois/drei/tres;four/quatre/vier/cuatro;five/cinq/fünf/cinco;six/six/sechs/seis
seven/sept/sieben/siete;eight/huit/acht/ocho;nine/neuf/neun/nueve;ten/dix/zehn/diez;yes/oui/ja/sí;no/non/nein/no
hello/bonjour/hallo/hola;thank you/merci/danke/gracias;goodbye/au revoir/auf Wiedersehen/adiós
good morning/bonjour/guten Morgen/buenos días;good night/bonne nuit/gute Nacht/buenas noches;please/s'il vous plaît/bitte/por favor
car/voiture/Auto/coche;train/train/Zug/tren;ship/bateau/Schiff/barco;bridge/pont/Brücke/puente;river/rivière/Fluss/río
sea/mer/Meer/mar;mountain/montagne/Berg/montaña;forest/forêt/Wald/bosque;rain/pluie/Regen/lluvia;snow/neige/Schnee/nieve
wind/vent/Wind/viento;money/argent/Geld/dinero;key/clé/Schlüssel/llave;shoe/chaussure/Schuh/zapato;hat/chapeau/Hut/sombrero
letter/lettre/Brief/carta;word/mot/Wort/palabra;song/chanson/Lied/canción;doctor/médecin/Arzt/médico;bee/abeille/Biene/abeja
spring/printemps/Frühling/primavera;summer/été/Sommer/verano;autumn/automne/Herbst/otoño;winter/hiver/Winter/invierno"""
                .replace("\n", ";").split(";")]
LANGUAGES = ["French", "German", "Spanish"]

COLORS = "red blue green yellow orange purple pink brown black white gray silver gold turquoise violet".split()
FOODS = """pizza pasta sushi soup bread cheese rice salad chocolate pancakes curry noodles tacos dumplings strawberries apples
lasagna waffles mango stew popcorn paella ramen burgers kebab falafel""".split()
JOBS = """teacher doctor baker farmer painter pilot nurse writer singer carpenter gardener plumber lawyer engineer cook
dentist librarian tailor sailor photographer programmer journalist mechanic architect""".split()
HOBBIES = """reading swimming painting cooking dancing running chess fishing sailing knitting hiking singing cycling skiing
gardening photography climbing drawing baking surfing""".split()
PETS = "dog cat parrot rabbit hamster turtle goldfish pony lizard canary ferret".split()
FRUITS = "apple banana cherry grape lemon mango orange peach pear plum melon kiwi fig lime papaya apricot".split()
THINGS = """apple ball book box cup key pen hat shoe coin stone flower egg candle spoon card shell button plate leaf cookie
marble stamp toy pencil sticker orange pear lemon ticket bottle balloon""".split()
PLURALS = {"box": "boxes", "leaf": "leaves"}

STORY_ANIMALS = """dog cat fox rabbit bear mouse owl frog duck squirrel turtle hedgehog lion monkey horse sheep penguin beaver
goat crow""".split()
STORY_PEOPLE = "boy girl king queen farmer baker sailor knight wizard princess gardener fisherman teacher painter".split()
STORY_PLACES = """forest village mountain garden castle river beach city farm cave island lake meadow desert school market
library tower valley harbor""".split()
STORY_OBJECTS = """key lantern map ring book coin shell feather stone flute hat mirror seed box bell letter star balloon boat
umbrella kite crown candle""".split()

MIXED_WORDS = """apple baby ball bank bear bell bird boat bone book boot bread brick bridge brush bus cake candle car card cat chair
cheese child church city clock cloud coat coffee corn cow cup desk dog door dress drum duck ear earth egg engine eye face farm
father feather field finger fire fish flag floor flower fly foot forest fork fox friend frog garden gate gift girl glass goat
gold grape grass hair hammer hand hat heart hen hill honey horse house ice ink iron island jacket jam jar juice key king kite
kitchen knee knife ladder lake lamp leaf leg lemon letter lion lip lock map market milk mirror money moon mother mountain mouse
mouth nail neck needle nest net night nose nut oak oil onion orange oven owl page paint paper park pen pencil pepper piano
picture pig pin plane plant plate pocket potato queen rabbit rain ring river road rock roof room root rope rose salt sand school
sea seed sheep shelf ship shirt shoe shop silver sister snake snow soap sock song soup spoon spring square stamp star stone storm
street sugar summer sun table tail tea teacher tent tiger tooth town train tree uncle umbrella valley vase violin voice wagon wall
watch water wave wheel wind window wine wing winter wolf wood wool yard zebra""".split()


def number_word(n):
    ones = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen""".split()
    tens = "x x twenty thirty forty fifty sixty seventy eighty ninety".split()
    if n < 20:
        return ones[n]
    if n < 100:
        return tens[n // 10] + ("-" + ones[n % 10] if n % 10 else "")
    return str(n)
