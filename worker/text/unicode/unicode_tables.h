/* worker/text/unicode/unicode_tables.h - made by make_unicode_tables.py; do not edit.
 * Character classes of Unicode 16.0.0, each a set of UC_* (unicode.h) and of these flags: 4096
 * NFC may change the character; 8192 some normal form may; 16384 no normal form changes it,
 * whatever the version of the library that normalizes; 32768 StripAccents removes it. */
#ifndef WORKER_TEXT_UNICODE_UNICODE_TABLES_H
#define WORKER_TEXT_UNICODE_UNICODE_TABLES_H

#include <stdint.h>

#define UNICODE_TABLES_VERSION "16.0.0"
#define UNICODE_SHIFT 8

/* 8 and 64 times x: what an element of an array or of a string is repeated by. */
#define N8(x)  x, x, x, x, x, x, x, x
#define N64(x) N8(x), N8(x), N8(x), N8(x), N8(x), N8(x), N8(x), N8(x)
#define S8(x)  x x x x x x x x
#define S64(x) S8(x) S8(x) S8(x) S8(x) S8(x) S8(x) S8(x) S8(x)

static const uint16_t unicode_kinds[47] = {
    0, 64, 256, 512, 1024, 2048, 2049, 2050, 2056, 2064, 2080, 2112, 2176, 2304, 2560, 8256, 8448,
    8704, 9216, 10241, 10242, 10244, 10248, 10256, 10272, 10304, 10496, 10752, 0, 12544, 12800,
    13312, 14337, 14338, 14344, 14352, 14464, 16384, 16896, 18440, 18448, 18464, 18560, 34832,
    34944, 43136, 47232,
};

static const uint8_t unicode_index[4352] = {
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
    26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 37, 38, 37, 39, 40, 41, 42, 43, 44, 45, 46, 47,
    48, 49, N8(21), N8(21), N8(21), 21, 50, N64(21), N8(21), N8(21), 21, 21, 51, 21, 21, 21, 52,
    21, 53, 54, 55, 56, 57, 58, N8(59), N8(59), N8(59), N8(59), N8(59), 59, 59, 59, 60, N8(61),
    N8(61), N8(61), N8(61), 61, 62, 63, 64, 59, 65, 66, 67, 68, 69, 70, 71, 72, 73, 21, 74, 75, 76,
    77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97, 98, 21, 21,
    21, 99, 100, 101, N8(102), 102, 103, 21, 21, 21, 21, 104, N8(21), 21, 21, 21, 21, 21, 21, 105,
    21, 21, 106, N8(102), N8(102), N8(102), 102, 102, 107, 102, 102, 102, 102, 102, 102, 21, 21,
    108, 109, 102, 110, 111, 112, N8(21), N8(21), 21, 21, 21, 21, 21, 21, 21, 113, 21, 21, 21, 21,
    114, 115, N8(102), N8(102), N8(102), N8(102), 102, 116, 21, 117, 118, N8(102), 102, 119,
    N8(102), 102, 102, 102, 102, 102, 102, 102, 120, 37, 121, 122, 123, 124, 125, 126, 127, 128,
    129, 130, 37, 37, 131, 102, 102, 102, 102, 132, 133, 134, 135, 102, 136, 137, 102, 138, 139,
    140, 102, 102, 141, 142, 143, 102, 144, 145, 146, 37, 37, 37, 147, 148, 149, 37, 150, 151, 102,
    102, 102, 102, N64(21), N64(21), N8(21), N8(21), N8(21), N8(21), 21, 21, 21, 21, 21, 21, 152,
    N8(21), N8(21), 153, 154, N8(21), N8(21), 21, 21, 21, 21, 21, 155, N8(21), N8(21), N8(21), 21,
    21, 21, 21, 156, 21, 21, 157, N8(102), 102, 62, 62, 158, 102, 102, 102, 102, 102, N8(21),
    N8(21), 21, 21, 21, 159, N8(21), 21, 21, 21, 21, 21, 21, 21, 160, N64(102), N64(102), N64(102),
    N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102),
    N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102),
    N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102),
    N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102), N64(102),
    N64(102), N64(102), N64(102), N64(102), N8(102), N8(102), N8(102), 102, 102, 102, 102, 161,
    162, N64(102), N64(102), N64(102), N8(102), N8(102), N8(102), N8(102), N8(102), N8(102),
    N8(102), 102, 102, 102, 102, 102, 102, N64(61), N64(61), N64(61), N8(61), N8(61), N8(61),
    N8(61), N8(61), N8(61), N8(61), 61, 61, 61, 61, 61, 61, 61, 163, N64(61), N64(61), N64(61),
    N8(61), N8(61), N8(61), N8(61), N8(61), N8(61), N8(61), 61, 61, 61, 61, 61, 61, 61, 163,
};

static const char unicode_blocks[41985] =
    "@@@@@@@@@DDDDD@@@@@@@@@@@@@@@@@@DBBBCBBBBBBCBBBBJJJJJJJJJJBBCCCBB" S8("F") S8("F") S8("F")
    "FFBBBCMC" S8("G") S8("G") S8("G") "GGBCBC@@@@@@D" S8("@") S8("@") S8("@") "@@RBCCCCCBQCWBC@C"
    "QCCOOQTBBQOWBOOOBSSSSSSFSSSSSSSSSFSSSSSSCFSSSSSFGTTTTTTGTTTTTTTTTGTTTTTTCGTTTTTGTSTSTSTSTSTS"
    "TSTSTFGSTSTSTSTSTSTSTSTSTSTFGSTSTSTSTSGSTSTSTGSTSTSTSTFGSTSTSTTFGSTSTSTFGSTSTSTSTSTSTSTSTSTF"
    "GSTSTSTSTSTSTSTSTSSTSTSTTGFFGFGFFGFFFGGFFFFGFFGFFFGGGFFGFSTFGFGFFGFGGFGFSTFFFGFGFFGGIFGGGIII"
    "ISUTSUTSUTSTSTSTSTSTSTSTSTGSTSTSTFGSTSTSTSTSTTSUTSTFFSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTFGS"
    "TFGFGFGSTSTSTSTSTSTSTGGGGGGFFGFFGGFGFFFFGFGFGFGF" S64("G") "GGGGGI" S8("G") S8("G") S8("G")
    "GGGVVVVVVVVVHHHHHHHHHCCCCHHHHHHHHHHHHCCCCCCQQQQQQCCVVVVVCCCCCCCHCHCCCCCCCCCCCCCCCCC" S64("n")
    S8("n") "nnnnnnnl" S8("n") S8("n") S8("n") S8("n") "FGFGbCFGeeVGGG]FeeeeQQS]SSSeSeSSTFFFFFFFF"
    "FFFFFFFFFeFFFFFFFSSTTTTT" S8("G") S8("G") S8("G") "GTTTTTFTTSSSTTGFGFGFGFGFGFGFGFGFGFGFGFGTT"
    "TGSTCFGSFGGFFFSSFSFFFSFFFFSSSFFFFFFFFFFSFFFFFFFFFFFFFFFFFFFFFFGGGGGGGGGTGGGGGGGGGGGGGGGGGGGG"
    "GGTTGTGGGTGGGGTTTGFGFGFGFGFGFGFGFGFGFGFGSTFGFGFGFGFGCnnnnnllFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFG"
    "FGFGFGFGFGFGFGFGFGFGFGFSTFGFGFGFGFGFGGSTSTFGSTFGSTSTSTFGSTSTSTFGSTSTSTSTSTSTFGSTFGFGFGFGFGFG"
    "FGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGe" S8("F") S8("F") S8("F") S8("F") "FFFFFFeeHBBBBB"
    "B" S8("G") S8("G") S8("G") S8("G") "GGGGGGGTGBBeeCCCe" S8("n") S8("n") S8("n") S8("n")
    S8("n") "nnnnnBnBnnBnnBneeeeeeee" S8("I") S8("I") S8("I") "IIIeeeeIIIIBBeeeeeeeeeee@@@@@@CCCB"
    "BCBBCCnnnnnnnnnnnB@BBBIIWWWWW" S8("I") S8("I") S8("I") "IHIIIIIIIIIInnnnnnnnnnnnnnnnnnnnnJJJ"
    "JJJJJJJBBBBIInIIIIWWWW" S64("I") "IIIIIIIWIWIIIIIIIIIIIIIIIIWBInnnnnnn@CnnnnnnHHnnCnnnnIIJJJ"
    "JJJJJJJIIICCIBBBBBBBBBBBBBBe@In" S8("I") S8("I") S8("I") "IIIIII" S8("n") S8("n") S8("n")
    "nnnee" S64("I") S8("I") S8("I") S8("I") "IlllllllllllIeeeeeeeeeeeeeeJJJJJJJJJJ" S8("I")
    S8("I") S8("I") S8("I") "InnnnnnnnnHHCBBBHeejCCIIIIIIIIIIIIIIIIIIIIIInnnnHnnnnnnnnnHnnnHnnnnn"
    "eeBBBBBBBBBBBBBBBe" S8("I") S8("I") S8("I") "InnneeBeIIIIIIIIIIIeeeee" S8("I") S8("I")
    S8("I") "CIIIIIIe@@eeeeejjjjjjjjj" S8("I") S8("I") S8("I") S8("I") S8("I") "IHjjjjjjjjjjnnnnn"
    "nnnnnnnnn@" S8("n") S8("n") S8("n") "nnnnnllll" S8("I") S8("I") S8("I") S8("I") "IIIIIWIIIII"
    "IIWIIWIIIIIllnIlllllllllllllllnllInnnnlllccccccccIIllBBJJJJJJJJJJBHIIIIIIIIIIIIIIIllleIIIIII"
    "IIeeIIeeIIIIIIIIIIIIIIIIIIIIIIeIIIIIIIeIeeeIIIIeenInlllllleelleemmnIeeeeeeeeneeeeccecIIlleeJ"
    "JJJJJJJJJIICCAAAAAACCIBjeellleIIIIIIeeeeIIeeIIIIIIIIIIIIIIIIIIIIIIeIIIIIIIeIceIceIIeenelllll"
    "eeeelleellneeeleeeeeeecccIeceeeeeeeJJJJJJJJJJllIIIlBeeeeeeeeeellleIIIIIIIIIeIIIeIIIIIIIIIIII"
    "IIIIIIIIIIeIIIIIIIeIIeIIIIIeenIllllllllelllellneeIeeeeeeeeeeeeeeeIIlleeJJJJJJJJJJBCeeeeeeeIL"
    "LLLLLellleIIIIIIIIeeIIeeIIIIIIIIIIIIIIIIIIIIIIeIIIIIIIeIIeIIIIIeenInlllllleelmeemmneeeeeeeLn"
    "neeeecceIIIlleeJJJJJJJJJJCIAAAAAAeeeeeeeeeelIeIIIIIIeeeIIIeIIWIeeeIIeIeIIeeeIIeeeIIIeeeIIIII"
    "IIIIIIIeeeenlllleeelllemmmneeIeeeeeeneeeeeeeeeeeeeeJJJJJJJJJJAAACCCCCCCCeeeeellllLIIIIIIIIeI"
    "IIeIIIIIIIIIIIIIIIIIIIIIIIeIIIIIIIIIIIIIIIIeejIlllllllellmelllneeeeeeenneIIIeeIeeIIlleeJJJJJ"
    "JJJJJeeeeeeeBAAAAAAACIlllBIIIIIIIIeIIIeIIIIIIIIIIIIIIIIIIIIIIIeIIIIIIIIIIeIIIIIeenIllmlnllel"
    "mmemmlneeeeeeenneeeeeeIIeIIlleeJJJJJJJJJJeIILeeeeeeeeeeeeLlllIIIIIIIIIeIIIe" S8("I")
    S8("I") S8("I") S8("I") S8("I") "IjjInllllllelllemmmnICeeeeIIInAAAAAAAIIIlleeJJJJJJJJJJAAAAAA"
    "AAACIIIIIIeLlleIIIIIIIIIIIIIIIIIIeee" S8("I") S8("I") S8("I") "eIIIIIIIIIeIeeIIIIIIIeeeneeee"
    "nlllllelellmlmmmneeeeeeJJJJJJJJJJeellBeeeeeeeeeeee" S8("I") S8("I") S8("I") S8("I") S8("I")
    S8("I") "lIWllllnnneeeeCIIIIIIHlnnnnlllBJJJJJJJJJJBB" S8("e") S8("e") S8("e") S8("e") "eeee"
    "eIIeIeIIIIIe" S8("I") S8("I") S8("I") "eIeIIIIIIIIIIlIWllllnnjllIeeIIIIIeHennnnllLeJJJJJJJJJ"
    "JeeWWII" S8("e") S8("e") S8("e") S8("e") "ICCCBBBBBBBBPBBBBBBCBCCCnnCCCCCCJJJJJJJJJJAAAAAAAA"
    "AACnCnCnBBBBllIIIcIIIIeIIIIcIIIIcIIIIcIIIIcIIIIIIIIIIIIcIIIeeeennnnnnmnmnnnnllnnnnnBnnIIIIIl"
    "lllllnllllellllnllllnllllnllllnllllllllnlnlnllleCCCCCCCCnCCCCCCeCCBBBBBCCCCBB" S8("e")
    S8("e") S8("e") S8("e") "eeeee" S8("I") S8("I") S8("I") S8("I") "IIIIIIWIIIIlllnllllllllnlnnl"
    "lllIJJJJJJJJJJBBBBBBIIIIIIllllIIIIlllIlllIIlllllllIIIllllIIIIIIIIIIIIIlllllllllllnIlJJJJJJJJ"
    "JJllllCC" S8("F") S8("F") S8("F") S8("F") "FFFFFFeFeeeeeFee" S8("G") S8("G") S8("G")
    S8("G") S8("G") "GGGBVGGG" S64("I") S8("I") S8("I") S8("I") S8("I") "Iccccccccccccccccccccc"
    S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "II" S8("c") S8("c") S8("c") "ccc" S64("I")
    S64("I") "IIIIIIeIIIIeeIIIIIIIeIeIIIIee" S8("I") S8("I") S8("I") S8("I") S8("I") "IeIIIIee"
    S8("I") S8("I") S8("I") S8("I") "IeIIIIeeIIIIIIIeIeIIIIeeIIIIIIIIIIIIIIIe" S8("I") S8("I")
    S8("I") S8("I") S8("I") S8("I") S8("I") "IeIIIIee" S64("I") "IIIeennnBBBBBBBBBAAAAAAAAAAAAAAA"
    "AAAAAeeeIIIIIIIIIIIIIIIICCCCCCCCCCeeeeee" S64("F") S8("F") S8("F") "FFFFFFeeGGGGGGeeB"
    S64("I") S64("I") S64("I") S64("I") S64("I") S64("I") S64("I") S64("I") S64("I") S8("I")
    S8("I") S8("I") S8("I") S8("I") "IIIICBIIIIIIIIIIIIIIIIID" S8("I") S8("I") S8("I") "IIBBeee"
    S64("I") S8("I") "IIIBBBKKKIIIIIIIIeeeeeeeIIIIIIIIIIIIIIIIIIllnjeeeeeeeeeIIIIIIIIIIIIIIIIIIIl"
    "lnBBeeeeeeeeeIIIIIIIIIIIIIIIIIIlleeeeeeeeeeeeIIIIIIIIIIIIIeIIIelleeeeeeeeeeee" S8("I")
    S8("I") S8("I") S8("I") S8("I") S8("I") "IIII" S8("l") S8("l") S8("l") "llllllnlBBBHBBBCIneeJ"
    "JJJJJJJJJeeeeeeAAAAAAAAAAeeeeeeBBBBBBBBBBBlll@LJJJJJJJJJJeeeeee" S8("I") S8("I") S8("I")
    S8("I") "IIIH" S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "IIIIIeeeeeeeIIIIIll" S8("I")
    S8("I") S8("I") S8("I") "IInIeeeee" S64("I") "IIIIIIeeeeeeeeee" S8("I") S8("I") S8("I") "II"
    "IIIIIelllllllllllleeeelllllllllnnneeeeCeeeBBJJJJJJJJJJ" S8("I") S8("I") S8("I") "IIIIIIeeIII"
    "IIeeeeeeeeeee" S8("I") S8("I") S8("I") S8("I") S8("I") "IIIIeeee" S8("I") S8("I") S8("I")
    "IIeeeeeeJJJJJJJJJJAeee" S8("C") S8("C") S8("C") S8("C") "CCIIIIIIIIIIIIIIIIIIIIIIInnllleeBB"
    S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "IIIIIllllllllllenllllllllllllllllllllnnnnnnn"
    "neenJJJJJJJJJJeeeeeeJJJJJJJJJJeeeeeeBBBBBBBHBBBBBBeennnnnnnnnnnnnnljjjjjjjjjjjjjjjj" S8("e")
    S8("e") S8("e") S8("e") S8("e") S8("e") "elllllIWIWIWIWIWIIIW" S8("I") S8("I") S8("I")
    S8("I") "InnlllllmlmllmmlmnIIIIIIIIeBBJJJJJJJJJJBBBBBBBCCCCCCCCCCnnnnnnnnnCCCCCCCCCBBBlll"
    S8("I") S8("I") S8("I") "IIIIIIlllllllllnnllIIJJJJJJJJJJ" S8("I") S8("I") S8("I") S8("I")
    S8("I") "IIIInlllllllllllnneeeeeeeeBBBB" S8("I") S8("I") S8("I") S8("I") "IIIIlllllllllllllll"
    "llllneeeBBBBBJJJJJJJJJJeeeIIIJJJJJJJJJJ" S8("I") S8("I") S8("I") "IIIIIIHHHHHHBBGGGGGGGGGFGe"
    "eeee" S8("F") S8("F") S8("F") S8("F") S8("F") "FFFeeFFFBBBBBBBBeeeeeeeennnBnnnnnnnnnnnnnlnnn"
    "nnnnIIIInIIIIkknIILnnIeeeee" S8("G") S8("G") S8("G") S8("G") S8("G") "GGGGVVVHVVVVVVVVVVVHVV"
    "VVVVVVVVVVVVVVVVH" S8("V") S8("V") S8("V") "VVVVGGGGGGGGGGGGGV" S8("G") S8("G") S8("G")
    S8("G") "GG" S8("V") S8("V") S8("V") S8("V") "VVVVV" S8("n") S8("n") S8("n") S8("n") S8("n")
    S8("n") "nnnnnnjjjjjnnnnnSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTST"
    "STSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTTTTTTTGGFG"
    "STSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTSTFG"
    "FGFGTTTTTTTTSSSSSSSSTTTTTTeeSSSSSSeeTTTTTTTTSSSSSSSSTTTTTTTTSSSSSSSSTTTTTTeeSSSSSSeeTTTTTTTT"
    "eSeSeSeSTTTTTTTTSSSSSSSSTaTaTaTaTaTaTaeeTTTTTTTTUUUUUUUUTTTTTTTTUUUUUUUUTTTTTTTTUUUUUUUUTTTT"
    "TeTTSSS`UQaQQQTTTeTTS`S`UQQQTTTaeeTTSSS`eQQQTTTaTTTTSSS`SQ^^eeTTTeTTS`S`U^Qe__RRRRRRRRR@EE@@"
    "BPBBBBBPBBBBBBBBBBBBPPPBDD@@@@@RBBBPPBPPBBBBPBPMMBBBCBBPPPBBBBBBBBCBMBBPBBBBBBBR@@@@@e@@@@@@"
    "@@@@OVeeOOOOOOQQQPPVOOOOOOOOOOQQQPPeVVVVVVVVVVVVVeeeCCCCCCCCQ" S8("C") S8("C") S8("C") "eeee"
    "eeeeeeeeeeennnnnnnnnnnnnllllnlllnnnnnnnnnnnneeeeeeeeeeeeeeeQQSQCQQSCQTSSSTTSSSTCSQCCSSSSSCCQ"
    "QQCSC`CSC``SSCTSSFSTWWWWTCQTTSSQCCCCSTTTTCCCCGCOOOOOOOOOOOOOOOO" S8("Y") S8("Y") S8("Y")
    S8("Y") "KKKFGKKKKOCCeeeeCCCCCCCCCCQQCCCCCCCCCCCCCCCCCCQ" S8("C") S8("C") S8("C") "CCCCCCQQQ"
    S8("C") S8("C") S8("C") S8("C") S8("C") S8("C") "CCCCQCCCCQCCQCCCCCCCCCCCCCCCCCCCCCCCQCQCCCCC"
    "QQCQQCCCCCCCCCCCCCCCCQCCQCCQCQCCCCCCCCCCCCCCCCCCCCCCQCQCCCCCCCCCCQQQQQCCQQCCQQCCCCCCQQCCQQCC"
    "QQ" S8("C") S8("C") S8("C") S8("C") "CCQQQQ" S8("C") S8("C") S8("C") S8("C") S8("C")
    S8("C") "QQQQCCCCCCQQQQ" S8("C") S8("C") S8("C") "CCBBBB" S8("C") S8("C") S8("C") "CCCCC]]"
    S64("C") S64("C") S64("C") S8("C") S8("C") S8("C") S8("C") S8("C") S8("C") S8("C") "CCCCCCCee"
    "eeeeeeeeeeeeeeeeeeeeCCCCCCCCCCCeeeeeeeeeeeeeeeeeeeee" S8("O") S8("O") S8("O") S8("O")
    S8("O") S8("O") S8("O") "OOOO" S8("Q") S8("Q") S8("Q") "QQ" S8("[") S8("[") S8("[") S8("[")
    S8("[") S8("[") "[[[[OAAAAAAAAAAAAAAAAAAAAA" S64("C") S64("C") S64("C") S64("C") S64("C")
    S8("C") S8("C") S8("C") S8("C") S8("C") "BBBBBBBBBBBBBB" S8("A") S8("A") S8("A") "AAAAAA"
    S8("C") S8("C") S8("C") S8("C") S8("C") S8("C") "CBB" S8("C") S8("C") S8("C") "CCCCCCCBBBBBBB"
    "BBB" S64("C") S64("C") S8("C") S8("C") "CCCBBBBBBBBBBBBBBBBBBBBBB" S8("C") S8("C") S8("C")
    S8("C") S8("C") S8("C") S8("C") "CCCCCCCBBBB" S8("C") S8("C") S8("C") S8("C") "BBCCCCCCCCCCCC"
    "CCQ" S64("C") S8("C") S8("C") S8("C") S8("C") "CCCCCCCQQQ" S64("C") S8("C") S8("C") S8("C")
    S8("C") "CCCCC^" S64("C") S64("C") S8("C") S8("C") "CCCCCCCee" S8("C") S8("C") S8("C")
    S8("C") "e" S64("C") S8("C") S8("C") S8("C") S8("C") S8("C") "C" S8("F") S8("F") S8("F")
    S8("F") S8("F") S8("F") S8("G") S8("G") S8("G") S8("G") S8("G") S8("G") "FGFFFGGFGFGFGFFFFGFG"
    "GFGGGGGGVVFFFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFG"
    "FGFGFGFGFGFGFGFGFGFGGCCCCCCFGFGnnnFGeeeeeBBBBABB" S8("G") S8("G") S8("G") S8("G") "GGGGGGeGe"
    "eeeeGee" S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "eeeeeeeVBeeeeeeeeeeeeeenII"
    "IIIIIIIIIIIIIIIIIIIIIeeeeeeeeeIIIIIIIeIIIIIIIeIIIIIIIeIIIIIIIeIIIIIIIeIIIIIIIeIIIIIIIeIIIIII"
    "Ie" S8("n") S8("n") S8("n") S8("n") S8("B") S8("B") S8("B") S8("B") S8("B") "BBBBBBBH" S8("B")
    S8("B") S8("B") S8("B") "CCBBBBBBBBBBBB" S8("e") S8("e") S8("e") S8("e") "ee" S8("C")
    S8("C") S8("C") "CCeCCCCQ" S64("C") S8("C") S8("C") "CCCQeeeeeeeeeeee" S64("Q") S64("Q")
    S64("Q") S8("Q") S8("Q") "QQQQQQ" S8("e") S8("e") S8("e") "eeCCCCCCCCCCCCCCCCRBBBCHIKBBBBBBBB"
    "BBCCBBBBBBBBBBBBCKKKKKKKKKnnnnnnBHHHHHQCYYYHIBCCeIIIIIIIIIIIWIWIWIWIWIWIWIWIWIWIWIWIIWIWIWII"
    "IIIIWWIWWIWWIWWIWWIIIIIIIIIIIIIIIIIIIIIIWIIeennQQHVWBIIIIIIIIIIIWIWIWIWIWIWIWIWIWIWIWIWIIWIW"
    "IWIIIIIIWWIWWIWWIWWIWWIIIIIIIIIIIIIIIIIIIIIIWIIWWWWBHHVWeeeee" S8("I") S8("I") S8("I")
    S8("I") S8("I") "IIIe" S64("W") S8("W") S8("W") S8("W") "WWWWWWeCCOOOOQQQQQQQQQQ" S8("I")
    S8("I") S8("I") S8("I") S8("C") S8("C") S8("C") S8("C") "CCCCCCeeeeeeeeeCIIIIIIIIIIIIIIII"
    S8("Q") S8("Q") S8("Q") "QQQQQQQeOOOOOOOOOO" S8("Q") S8("Q") S8("Q") "QQQQQQAAAAAAAAQOOOOOOOO"
    "OOOOOOO" S8("Q") S8("Q") S8("Q") "QQQQQQQCOOOOOOOOOO" S8("Q") S8("Q") S8("Q") S8("Q") "QQQ"
    "QQQQOOOOOOOOOOOOOOO" S8("Q") S8("Q") S8("Q") S8("Q") S8("Q") S8("Q") S8("Q") "QQQQQQQf"
    S64("Q") S64("Q") S64("Q") S64("Q") S64("I") S64("I") S64("I") S64("C") "IIIIIIIIIIIIIIIIIIII"
    "IH" S64("I") S64("I") S64("I") S64("I") S64("I") S8("I") S8("I") S8("I") S8("I") S8("I")
    S8("I") "IIIIIIIeee" S8("C") S8("C") S8("C") S8("C") S8("C") S8("C") "CCCCCCCeeeeeeeee" S8("I")
    S8("I") S8("I") S8("I") S8("I") "HHHHHHBBIIIIIIIIIIIIHBBBIIIIIIIIIIIIIIIIJJJJJJJJJJIIeeeeeeee"
    "eeeeeeeeeeeeFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGInlllBnnnnnnnnnnBHFGFGFGFGFGFGFGFG"
    "FGFGFGFGFGFGVVnn" S64("I") "IIIIIIKKKKKKKKKKnnBBBBBBeeeeeeeeCCCCCCCCCCCCCCCCCCCCCCCHHHHHHHHH"
    "CCFGFGFGFGFGFGFGGGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGFGVGGGGGGGGFGF"
    "GFFGFGFGFGFGHCCFGFGIFGFGGGFGFGFGFGFGFGFGFGFGFGFFFFFGFFFFFGFGFGFGFGFGFGFGFFFFGFGFFGeeFGeGeGFG"
    "FGFGFeeeeeeeeeeeeeeeeeeeeegggFGIVVGIIIIIIIlIIInIIIIlIIIIIIIIIIIIIIIIIIIIIIIlllllCCCCjeeeAAAA"
    "AACCCCeeeeee" S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "IIIIBBBBeeeeeeeell" S8("I")
    S8("I") S8("I") S8("I") S8("I") S8("I") "IIllllllllllllllllnleeeeeeeeBBJJJJJJJJJJeeeeeennnnnn"
    "nnnnnnnnnnnnIIIIIIBBBIBIILJJJJJJJJJJ" S8("I") S8("I") S8("I") "IIIIlllllnnnBBIIIIIIIIIIIIIII"
    "IIIIIIIIllllllllllllneeeeeeeeeeeB" S8("I") S8("I") S8("I") "IIIIIeeellll" S8("I") S8("I")
    S8("I") S8("I") S8("I") "IIIIIIInllllllllllllnBBBBBBBBBBBBBeHJJJJJJJJJJeeeeBBIIIIIlHIIIIIIIII"
    "JJJJJJJJJJIIIIIe" S8("I") S8("I") S8("I") S8("I") S8("I") "IlllllllllllllleeeeeeeeeIIIlIIIII"
    "IIIlleeJJJJJJJJJJeeBBBBIIIIIIIIIIIIIIIIHIIIIIICCCIlll" S8("I") S8("I") S8("I") S8("I")
    S8("I") S8("I") "IInInnnIInnIIIIInnInI" S8("e") S8("e") S8("e") "IIHBBIIIIIIIIIIIlllllBBIHHln"
    "eeeeeeeeeeIIIIIIeeIIIIIIeeIIIIIIeeeeeeeeeIIIIIIIeIIIIIIIe" S8("G") S8("G") S8("G") S8("G")
    S8("G") "GGGCVVVVGGGGGGGGGgCCeeee" S64("G") S8("G") S8("G") S8("I") S8("I") S8("I") S8("I")
    "IIIllllllllBlneeJJJJJJJJJJeeeeee" S64("W") S64("W") S64("W") S64("W") S64("W") S64("W")
    S8("W") S8("W") S8("W") S8("W") "WWWWeeeeeeeeeeeeIIIIIIIIIIIIIIIIIIIIIIIeeee" S8("I")
    S8("I") S8("I") S8("I") S8("I") S8("I") "Ieeee" S64("@") S64("@") S64("@") S64("@") S64("c")
    S64("c") S64("c") S64("c") S8("c") "ccccccIIcIcIIccccccccccIcIcIIccIII" S64("c") "ccccee"
    S64("c") S8("c") S8("c") S8("c") S8("c") S8("c") "cc" S8("e") S8("e") S8("e") S8("e") "eeee"
    "eeTTTTTTTeeeeeeeeeeeeTTTTTeeeeecncWWWWWWWWWQcccccccccccccecccccececcecceccccccccc" S64("W")
    S8("W") S8("W") S8("W") S8("W") "WWWCCCCCCCCCCCCCCCCCeeeeeeeeeeeeeeee" S64("W") S8("W")
    S8("W") S8("W") S8("W") S8("W") "WWWBBCCCCCCCCCCCCCCCC" S64("W") "ee" S8("W") S8("W")
    S8("W") S8("W") S8("W") S8("W") "WWWWWWeeeeeeeC" S8("e") S8("e") S8("e") S8("e") "WWWWWWWWWWW"
    "WQCCCllllllllllllllllPPPPPPPPPPeeeeeennnnnnnnnnnnnnnnPPPZZPPPPPPPPPPPPPPPPBBPPPPPPZZZPPPePPP"
    "PPPPPPPPPPPQPQQQePQPPeeeeWWWIWe" S64("W") S64("W") "WWWWWWWee@ePPPQPPPPPPQPPPPXXXXXXXXXXPPQQ"
    "QPP" S8("S") S8("S") S8("S") "SSPPPQZQ" S8("T") S8("T") S8("T") "TTPQPQPPPPPPPWWWWWWWWWWV"
    S8("W") S8("W") S8("W") S8("W") S8("W") "WWWWWVV" S8("W") S8("W") S8("W") "WWWWWWWeeeWWWWWWee"
    "WWWWWWeeWWWWWWeeWWWeeeQQQQQQQeQQQQQQQeeeeeeeeee@@@CCeeIIIIIIIIIIIIe" S8("I") S8("I")
    S8("I") "IIeIIIIIIIIIIIIIIIIIIIeIIeIIIIIIIIIIIIIIIeeIIIIIIIIIIIIII" S8("e") S8("e") S8("e")
    S8("e") "ee" S64("I") S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "IIIeeeeeBBBeee"
    "e" S8("A") S8("A") S8("A") S8("A") S8("A") "AAAAAeeeCCCCCCCCC" S8("K") S8("K") S8("K")
    S8("K") S8("K") S8("K") "KKKKKAAAACCCCCCCCCCCCCCCCCAACCCeCCCCCCCCCCCCCeeeC" S8("e") S8("e")
    S8("e") S8("e") S8("e") "eeeeeee" S8("C") S8("C") S8("C") S8("C") S8("C") "CCCCCn" S64("e")
    S64("e") "ee" S8("I") S8("I") S8("I") "IIIIIeee" S8("I") S8("I") S8("I") S8("I") S8("I")
    S8("I") "Ieeeeeeeeeeeeeeen" S8("A") S8("A") S8("A") "AAAeeee" S8("I") S8("I") S8("I")
    S8("I") "AAAAeeeeeeeeeIIIIIIIIIIIIIIIIIIIIKIIIIIIIIKeeeee" S8("I") S8("I") S8("I") S8("I")
    "IIIIIInnnnneeeee" S8("I") S8("I") S8("I") "IIIIIIeB" S8("I") S8("I") S8("I") S8("I") "IIIIee"
    "eeIIIIIIIIBKKKKK" S8("e") S8("e") S8("e") S8("e") S8("e") "ee" S8("F") S8("F") S8("F")
    S8("F") S8("F") S8("G") S8("G") S8("G") S8("G") S8("G") S64("I") S8("I") "IIIIIIeeJJJJJJJJJJe"
    "eeeee" S8("F") S8("F") S8("F") S8("F") "FFFFeeee" S8("G") S8("G") S8("G") S8("G") "GGGGeeee"
    S8("I") S8("I") S8("I") S8("I") S8("I") "eeeeeeee" S8("I") S8("I") S8("I") S8("I") S8("I")
    S8("I") "IIIIeeeeeeeeeeeBFFFFFFFFFFFeFFFFFFFFFFFFFFFeFFFFFFFeFFeGGGGGGGGGGGeGGGGGGGGGGGGGGGeG"
    "GGGGGGeGGeeeIIIIIIIIIh" S8("I") S8("I") S8("I") "IIhIIIIIIIIIIIIIIIeeeeeeeeeeee" S8("I")
    S8("I") S8("I") S8("I") S8("I") S8("I") "IIIIIIIeeeeeeeeeIIIIIIIIIIIIIIIIIIIIIIeeeeeeeeeeIIII"
    "IIII" S8("e") S8("e") S8("e") "Hggggge" S8("g") S8("g") S8("g") S8("g") S8("g") "ggegggggggg"
    "g" S64("e") "eeeeeIIIIIIeeIe" S8("I") S8("I") S8("I") S8("I") S8("I") "IIIIeIIeeeIeeIIIIIIII"
    "IIIIIIIIIIIIIIIeBAAAAAAAAIIIIIIIIIIIIIIIIIIIIIIICCAAAAAAA" S8("I") S8("I") S8("I") "IIIIII"
    "IeeeeeeeeAAAAAAAAA" S8("e") S8("e") S8("e") S8("e") S8("e") S8("e") "IIIIIIIIIIIIIIIIIIIeIIe"
    "eeeeAAAAAIIIIIIIIIIIIIIIIIIIIIIAAAAAAeeeB" S8("I") S8("I") S8("I") "IIeeeeeB" S64("e")
    S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "eeeeAAIIAAAAAAAAAAAAAAAAee" S8("A")
    S8("A") S8("A") S8("A") S8("A") "AAAAAAIlllelleeeeelnlnIIIIeIIIe" S8("I") S8("I") S8("I")
    "IIIIIeennneeeenAAAAAAAAAeeeeeeeBBBBBBBBBeeeeeee" S8("I") S8("I") S8("I") "IIIIIAAB" S8("I")
    S8("I") S8("I") "IIIIIAAA" S8("e") S8("e") S8("e") S8("e") "IIIIIIIIC" S8("I") S8("I")
    S8("I") "IIIInneeeeAAAAABBBBBBBeeeeeeeee" S8("I") S8("I") S8("I") S8("I") S8("I") S8("I")
    "IIIIIIeeeBBBBBBBIIIIIIIIIIIIIIIIIIIIIIeeAAAAAAAAIIIIIIIIIIIIIIIIIIIeeeeeAAAAAAAAIIIIIIIIIIII"
    "IIIIIIeeeeeeeBBBBeeeeeeeeeeeeAAAAAAA" S64("e") S8("e") S8("e") S64("I") S8("I") "I" S8("e")
    S8("e") S8("e") S8("e") S8("e") S8("e") "eeeeeee" S8("F") S8("F") S8("F") S8("F") S8("F")
    S8("F") "FFFeeeeeeeeeeeee" S8("G") S8("G") S8("G") S8("G") S8("G") S8("G") "GGGeeeeeeeAAAAAA"
    S8("I") S8("I") S8("I") S8("I") "IIIIjjjjeeeeeeeeJJJJJJJJJJeeeeeeJJJJJJJJJJIIIIHIFFFFFFFFFFFF"
    "FFFFFFFFFFeeejjjjjBHGGGGGGGGGGGGGGGGGGGGGGeeeeeeeeCC" S64("e") S64("e") S64("e") S8("e")
    S8("e") S8("A") S8("A") S8("A") "AAAAAAAe" S8("I") S8("I") S8("I") S8("I") S8("I") "IIejjBeeI"
    "IeeeeeeeeeeeeeeeeIII" S8("e") S8("e") S8("e") S8("e") S8("e") S8("e") "eeeeeeeLjjj" S8("I")
    S8("I") S8("I") "IIIIIAAAAAAAAAAIeeeeeeeeIIIIIIIIIIIIIIIIIIIIIIjjjjjjjjjjjAAAABBBBBeeeeeeeeee"
    "eeeeeeeeeeeeIIIIIIIIIIIIIIIIIIjjjjBBBB" S8("e") S8("e") S8("e") S8("e") "eeeeeeIIIIIIIIIIIII"
    "IIIIIIIIAAAAAAAeeeeeeeeeeeeeeeeeeeeIIIIIIIIIIIIIIIIIIIIIIIeeeeeeeeelll" S8("I") S8("I")
    S8("I") S8("I") S8("I") S8("I") "IIIIIllllllllllllllnBBBBBBBeeeeAAAAAAAAAAAAAAAAAAAAJJJJJJJJJ"
    "JjIILLIeeeeeeeeenlllIIIIIIIIIIIIIIIIIIIIIIIWIWIIIIIIIIIIIIIIWIIIIlllllllllnnBB@BBBBLeeeeeeee"
    "ee@ee" S8("I") S8("I") S8("I") "IeeeeeeeJJJJJJJJJJeeeeeennn" S8("I") S8("I") S8("I")
    S8("I") "IIIInllllllmmlllnneJJJJJJJJJJBBBBILLIeeeeeeee" S8("I") S8("I") S8("I") S8("I") "II"
    "InBBIeeeeeeeeelll" S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "lllllllllllllnIIIIBBBBLn"
    "llBLLJJJJJJJJJJIBIBBBeAAAAAAAAAAAAAAAAAAAAeeeeeeeeeeeIIIIIIIIIIIIIIIIIIe" S8("I") S8("I")
    S8("I") "IlllllllllnnlBBBBBBlIIL" S8("e") S8("e") S8("e") S8("e") S8("e") S8("e") S8("e")
    "eeeeeeIIIIIIIeIeIIIIeIIIIIIIIIIIIIIIeIIIIIIIIIIBeeeeee" S8("I") S8("I") S8("I") S8("I")
    S8("I") "IIIIIIIllllllllllnneeeeeJJJJJJJJJJeeeeeelllleIIIIIIIIeeIIeeIIIIIIIIIIIIIIIIIIIIIIeII"
    "IIIIIeIIeIIIIIejnInlllllleelleemmneeIeeeeeeneeeeeIIIIIlleennnnnnneeennnnneeeeeeeeeeeIIIhIhII"
    "IIeIeeheIh" S8("I") S8("I") S8("I") S8("I") "IIIIeIdLLdLLLLLedeejejjdLeLLjjjILIBBeBBeeeeeeee"
    "LL" S8("e") S8("e") S8("e") "eeeee" S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "IIIIIll"
    "lllllllllllnlllnIIIIBBBBBJJJJJJJJJJBBeBjIII" S8("e") S8("e") S8("e") "eeeeee" S8("I")
    S8("I") S8("I") S8("I") S8("I") S8("I") "nlllllllllnmmnmlllnnIIBIeeeeeeeeJJJJJJJJJJ" S64("e")
    S64("e") S8("e") S8("e") S8("e") S8("e") "eeeeee" S8("I") S8("I") S8("I") S8("I") S8("I")
    "IIIIIIInlllllleellmmlllnnBBBBBBBBBBBBBBBBBBBBBBBIIIIll" S8("e") S8("e") S8("e") S8("e") "e"
    "e" S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "lllllllllllllllnlBBBIeeeeeeeeeeeJJJJJJJJ"
    "JJeeeeeeBBBBBBBBBBBBBeeeeeeeeeeeeeeeeeee" S8("I") S8("I") S8("I") S8("I") S8("I") "IIIllllll"
    "lllllnnIBeeeeeeJJJJJJJJJJeeeeeeJJJJJJJJJJJJJJJJJJJJ" S8("e") S8("e") S8("e") "eeee" S8("I")
    S8("I") S8("I") "IIIeellllllllllllllneeeeJJJJJJJJJJAABBBCIIIIIII" S64("e") S64("e") S8("e")
    S8("e") S8("e") S8("e") S8("e") S8("e") S8("e") "e" S8("I") S8("I") S8("I") S8("I") S8("I")
    "IIIILLLLLLLLLLLLLjjB" S64("e") S8("e") S8("e") S8("e") S8("e") "eeee" S8("F") S8("F")
    S8("F") S8("F") S8("G") S8("G") S8("G") S8("G") "JJJJJJJJJJAAAAAAAAAeeeeeeeeeeeeIIIIIIIIeeIee"
    "IIIIIIIIeIIe" S8("I") S8("I") S8("I") "dLLLLLeLjeeLLjjILILjBBBeeeeeeeeeJJJJJJJJJJ" S64("e")
    "eeeeeeIIIIIIIIee" S8("I") S8("I") S8("I") S8("I") "IIIIIIILLLLLLLeeLLLLLLjIBIL" S8("e")
    S8("e") S8("e") "eeeILLLLLLLLLL" S8("I") S8("I") S8("I") S8("I") S8("I") "LjLLLLLILLLLBBBBBBB"
    "BjeeeeeeeeILLLLLLLLLLL" S8("I") S8("I") S8("I") S8("I") S8("I") "IIIIIILLLLLLLLLLLLLLLjBBBIB"
    "BBBBeeeeeeeeeeeee" S64("I") S8("I") "IeeeeeeeBBBBBBBBBB" S64("e") S64("e") S8("e") S8("e")
    S8("e") S8("e") S8("e") S8("e") "eeeeee" S8("I") S8("I") S8("I") S8("I") "IBeeeeeeeeeeeeeeJJJ"
    "JJJJJJJeeeeeeIIIIIIIIIe" S8("I") S8("I") S8("I") S8("I") "IIIIIllllllllelllllllnIBBBBBeeeeee"
    "eeeeJJJJJJJJJJAAAAAAAAAAAAAAAAAAAeeeBB" S8("I") S8("I") S8("I") "IIIIIIeelllllllllllllllllll"
    "lllellllllllllllll" S64("e") S8("e") "eIIIIIIIeIIe" S8("I") S8("I") S8("I") S8("I") "IIIII"
    "ILLLLLLeeeLeLLeLLLjLjjILeeeeeeeeJJJJJJJJJJeeeeeeIIIIIIeIIe" S8("I") S8("I") S8("I") S8("I")
    "LLLLLeLLeLLLLjIeeeeeeeJJJJJJJJJJ" S64("e") S64("e") S64("e") S64("e") S8("e") S8("e")
    S8("e") S8("e") S8("e") S8("e") "eeeeeeIIIIIIIIIIIIIIIIIIILLLLBBeeeeeeeLLILIIIIIIIIIIIIIe"
    S8("I") S8("I") S8("I") S8("I") "IILLLLLLLeeeLLLjjBBBBBBBBBBBBBJJJJJJJJJJL" S64("e") S8("e")
    S8("e") "eeeeeIeeeeeeeeeeeeeeeAAAAAAAAAAAAAAAAAAAAA" S8("C") S8("C") S8("C") "CCCCCeeeeeeeeee"
    "eeeB" S64("I") S64("I") S8("I") S8("I") S8("I") "II" S64("e") S8("e") S8("e") S8("e")
    S8("e") "eeeeee" S64("K") S8("K") S8("K") S8("K") S8("K") S8("K") "KKKKKKKeBBBBBeeeeeeeeeee"
    S64("I") S64("I") S64("I") "IIII" S64("e") S64("e") S64("e") S64("e") S64("e") S64("e")
    S64("e") S64("e") S64("e") S8("e") "eeee" S64("I") S8("I") S8("I") S8("I") S8("I") "IBBeeeeee"
    "eeeeeee" S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "@@@@@@@@@@@@@@@@LIIIIIILLLLLLLLLLL"
    "LLLLeeeeeeeeee" S64("I") S64("I") S64("I") S64("I") S64("I") S64("I") S8("I") S8("I")
    S8("I") "IIIeeeee" S64("I") "IIIIIII" S64("e") S64("e") S8("e") S8("e") S8("e") S8("e")
    S8("e") S8("e") S8("e") "e" S8("I") S8("I") S8("I") "IIIIIIdddjjjjjjjjdLLLLLjJJJJJJJJJJ"
    S64("e") S64("e") S64("e") "eeeeee" S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") S8("I")
    "Ieeeeeee" S8("I") S8("I") S8("I") "IIIIIIIeJJJJJJJJJJeeeeBB" S64("I") S8("I") "IIIIIIIeJJJJJ"
    "JJJJJeeeeee" S8("I") S8("I") S8("I") "IIIIIIeennnnnBeeeeeeeeee" S8("I") S8("I") S8("I")
    S8("I") S8("I") S8("I") "nnnnnnnBBBBBCCCCHHHHBCeeeeeeeeeeJJJJJJJJJJeAAAAAAAeIIIIIIIIIIIIIIIII"
    "IIIIeeeeeIIIIIIIIIIIIIIIIIII" S64("e") S64("e") S8("e") S8("e") S8("e") S8("e") S8("e")
    S8("e") "HHH" S8("I") S8("I") S8("I") S8("I") "IIIIchhhHHBBBJJJJJJJJJJ" S64("e") S64("e")
    S64("e") "eeeeee" S8("F") S8("F") S8("F") S8("F") S8("G") S8("G") S8("G") S8("G") "AAAAAAAAAA"
    "AAAAAAAAAAAAABBBB" S64("e") S8("e") S8("e") S8("e") S8("e") "eeeee" S64("I") S8("I") "IIIeee"
    "eLI" S8("l") S8("l") S8("l") S8("l") S8("l") "llllllLLLLLLLLLeeeeeeellllHHHHHHHHHHHHH"
    S64("e") "HHBHLeeeeeeeeeeejjeeeeeeeeeeeeee" S64("I") S64("I") S64("I") S8("I") S8("I")
    S8("I") S8("I") S8("I") S8("I") S8("I") "eeeeeeee" S64("I") S64("I") S64("I") S8("I")
    S8("I") "IIIIII" S8("e") S8("e") S8("e") S8("e") S8("e") "eIIIIIIIIII" S64("e") S64("e")
    S64("e") S64("e") S64("e") S64("e") S64("e") S8("e") S8("e") S8("e") S8("e") "eeeeeeeHHHHeHHH"
    "HHHHeHHe" S8("I") S8("I") S8("I") S8("I") "IIIeeeeeeeeeeeeeeeI" S8("e") S8("e") S8("e") "e"
    "eeeeIIIeeIeeeeeeeeeeeeeeIIIIeeeeeeee" S64("I") S64("I") S64("I") S64("I") S64("I") S64("I")
    S8("I") "IIIIeeee" S64("I") S8("I") S8("I") S8("I") S8("I") S8("I") "IIIeeeeeIIIIIIIIIIIIIeee"
    "IIIIIIIIIeeeeeeeIIIIIIIIIIeeClnB@@@@" S64("e") S8("e") S8("e") S8("e") "eeee" S64("C")
    S64("C") S64("C") S8("C") S8("C") "CCCCCC" S8("f") S8("f") S8("f") "ffiiiiiiiiiieeeeee"
    S64("C") S64("C") S8("C") S8("C") S8("C") S8("C") S8("C") S8("C") "CCCC" S64("e") S8("e")
    "eeee" S8("L") S8("L") S8("L") S8("L") S8("L") "LLLLLLeeLLLLLLLLLLLLLLLLLLLLLLLeeeeeeeee"
    S64("C") S8("C") S8("C") S8("C") S8("C") S8("C") S8("C") "CCCC" S8("e") S8("e") S8("e")
    S8("e") S8("e") S8("e") S8("e") "eeee" S64("C") S64("C") S64("C") S8("C") S8("C") S8("C")
    S8("C") S8("C") S8("C") "CCCCCCeeeeeeeeee" S8("C") S8("C") S8("C") S8("C") "CCCCCCCee" S8("C")
    S8("C") S8("C") S8("C") S8("C") S8("C") "CCCCC^^^^^^^nnnnnCCCnnnnnn@@@@@@@@nnnnnnnnCCnnnnnnn"
    S8("C") S8("C") S8("C") "CCCCCCnnnnCCCCCCCCCCCCC^^^^^^" S8("C") S8("C") S8("C") S8("C")
    S8("C") "CCeeeeeeeeeeeeeeeeeeeee" S64("C") "CCnnnC" S64("e") S8("e") S8("e") S8("e") S8("e")
    S8("e") S8("e") S8("e") "eeAAAAAAAAAAAAAAAAAAAAeeeeeeeeeeeeAAAAAAAAAAAAAAAAAAAAeeeeeeeeeeee"
    S64("C") S8("C") S8("C") "CCCCCCCeeeeeeeee" S8("A") S8("A") S8("A") "A" S64("e") S64("e")
    "eeeeeee" S8("S") S8("S") S8("S") "SS" S8("T") S8("T") S8("T") "TT" S8("S") S8("S") S8("S")
    "SSTTTTTTTeTTTTTTTTTTTTTTTTTT" S8("S") S8("S") S8("S") "SS" S8("T") S8("T") S8("T") "TTSeSSee"
    "SeeSSeeSSSSeSSSSSSSSTTTTeTeTTTTTTTeTTTTTTTTTTT" S8("S") S8("S") S8("S") "SS" S8("T")
    S8("T") S8("T") "TTSSeSSSSeeSSSSSSSSeSSSSSSSe" S8("T") S8("T") S8("T") "TTSSeSSSSeSSSSSeSeeeS"
    "SSSSSSe" S8("T") S8("T") S8("T") "TT" S8("S") S8("S") S8("S") "SS" S8("T") S8("T") S8("T")
    "TT" S8("S") S8("S") S8("S") "SS" S8("T") S8("T") S8("T") "TT" S8("S") S8("S") S8("S") "SS"
    S8("T") S8("T") S8("T") "TT" S8("S") S8("S") S8("S") "SS" S8("T") S8("T") S8("T") "TT" S8("S")
    S8("S") S8("S") "SS" S8("T") S8("T") S8("T") "TT" S8("S") S8("S") S8("S") "SS" S8("T")
    S8("T") S8("T") "TTTTee" S8("S") S8("S") S8("S") "SQ" S8("T") S8("T") S8("T") "TQTTTTTT"
    S8("S") S8("S") S8("S") "SQ" S8("T") S8("T") S8("T") "TQTTTTTT" S8("S") S8("S") S8("S") "SQ"
    S8("T") S8("T") S8("T") "TQTTTTTT" S8("S") S8("S") S8("S") "SQ" S8("T") S8("T") S8("T") "TQTT"
    "TTTT" S8("S") S8("S") S8("S") "SQ" S8("T") S8("T") S8("T") "TQTTTTTTSTee" S8("X") S8("X")
    S8("X") S8("X") S8("X") S8("X") "XX" S8("l") S8("l") S8("l") S8("l") S8("l") S8("l") "lllll"
    "llCCCC" S8("l") S8("l") S8("l") S8("l") S8("l") S8("l") "llCCCCCCCClCCCCCCCCCCCCCClCCBBBBBee"
    "eeeeeeeeeeeeelllllelllllllllllllll" S64("e") S8("e") S8("e") "GGGGGGGGGGIGGGGGGGGGGGGGGGGGGG"
    "GeeeeeeGGGGGG" S64("e") S64("e") S64("e") S8("e") S8("e") "eeeeennnnnnnennnnnnnnnnnnnnnnneen"
    "nnnnnnennennnnneeeee" S8("g") S8("g") S8("g") S8("g") S8("g") S8("g") S8("g") "gggggg" S8("e")
    S8("e") S8("e") S8("e") "ej" S64("e") S8("e") S8("e") S8("e") S8("e") S8("e") S8("e")
    S8("I") S8("I") S8("I") S8("I") S8("I") "IIIIIeeejjjjjjjHHHHHHHeeJJJJJJJJJJeeeeIC" S64("e")
    S64("e") S64("e") S64("e") S64("e") S8("I") S8("I") S8("I") "IIIIIIjeeeeeeeeeeeeeeeee" S8("I")
    S8("I") S8("I") S8("I") S8("I") "IIIIjjjjJJJJJJJJJJeeeeeC" S64("e") S64("e") S64("e")
    S8("e") S8("e") S8("I") S8("I") S8("I") "IIIHjjjjJJJJJJJJJJ" S64("e") S64("e") S64("e")
    S8("e") S8("e") "eeeeee" S8("I") S8("I") S8("I") "IIIIIIjjIJJJJJJJJJJeeeeB" S64("e")
    S64("e") S64("e") S8("e") S8("e") S8("e") S8("e") "IIIIIIIeIIIIeIIeIIIIIIIIIIIIIIIe" S64("I")
    S64("I") S64("I") "IIIIIeeAAAAAAAAAnnnnnnn" S8("e") S8("e") S8("e") S8("e") S8("e") "e" S8("F")
    S8("F") S8("F") S8("F") "FF" S8("G") S8("G") S8("G") S8("G") "GGnnnnnnnHeeeeJJJJJJJJJJeeeeBB"
    S64("e") S64("e") S64("e") S64("e") S8("e") S8("e") "e" S8("A") S8("A") S8("A") S8("A")
    S8("A") S8("A") S8("A") "AAACAAACAAAA" S64("e") S8("e") "eeee" S8("A") S8("A") S8("A")
    S8("A") S8("A") "AAAAACAAAAAAAAAAAAAAA" S64("e") S64("e") S64("e") "eeWWWWe" S8("W") S8("W")
    S8("W") "WWWeWWeWeeWeWWWWWWWWWWeWWWWeWeWeeeeeeWeeeeWeWeWeWWWeWWeWeeWeWeWeWeWeWWeWeeWWWWeWWWWW"
    "WWeWWWWeWWWWeWeWWWWWWWWWWeWWWWWWWWWWWWWWWWWeeeeeWWWeWWWWWeWWWWWWWWWWWWWWWWW" S8("e")
    S8("e") S8("e") S8("e") S8("e") S8("e") "eeeeCCeeeeeeeeeeeeee" S8("C") S8("C") S8("C")
    S8("C") S8("C") "CCCCeeee" S64("C") S8("C") S8("C") S8("C") S8("C") "CCCCeeeeeeeeeeeeCCCCCCCC"
    "CCCCCCCeeCCCCCCCCCCCCCCCeCCCCCCCCCCCCCCCe" S8("C") S8("C") S8("C") S8("C") "CCCCCeeeeeeeeeeO"
    "OOOOOOOOOOAACCC" S8("Q") S8("Q") S8("Q") "QQQQQQQC" S8("[") S8("[") S8("[") "[[QQQQQQ" S8("N")
    S8("N") S8("N") "NNQQfCCC" S8("N") S8("N") S8("N") "NNCCCCCCQ" S8("C") S8("C") S8("C") "CCC"
    "CC" S8("e") S8("e") S8("e") S8("e") S8("e") S8("e") S8("e") S8("C") S8("C") S8("C") "CCQQQee"
    "eeeeeeeeeee" S8("Q") S8("Q") S8("Q") S8("Q") S8("Q") "QQQQeeeeQQQQQQQQQeeeeeeeQQeeeeeeeeeeee"
    "eeCCCCCC" S64("e") S64("e") S8("e") S8("e") S8("e") "ee" S64("C") S64("C") S64("C") S8("C")
    S8("C") S8("C") "eeeeCCCCCCCCCCCCCCCCCeeeCCCCCCCCCCCCCeee" S64("C") S8("C") S8("C") S8("C")
    S8("C") S8("C") S8("C") "CCCCCCCeeee" S64("C") S8("C") S8("C") S8("C") "CCCCCCCeeeeeeCCCCCCCC"
    "CCCCeeeeCeeeeeeeeeeeeeeeCCCCCCCCCCCCeeee" S8("C") S8("C") S8("C") S8("C") S8("C") S8("C")
    S8("C") "eeeeeeeeCCCCCCCCCCeeeeee" S8("C") S8("C") S8("C") S8("C") S8("C") "eeeeeeee" S8("C")
    S8("C") S8("C") "CCCCCCeeCCCCCCCCCCCCeeeeCC" S8("e") S8("e") S8("e") S8("e") S8("e") S8("e")
    S8("e") "eeeeee" S64("C") S8("C") S8("C") "CCCCeeeeeeeeeeeeCCCCCCCCCCCCCCeeCCCCCCCCCCCCCeeeCC"
    "CCCCCCCCeeeee" S8("C") S8("C") S8("C") S8("C") S8("C") S8("C") S8("C") "eeeeeeeCCCCCCCCCCCCC"
    "CCeeCCCCCCCCCCCeeeeeeCCCCCCCCCeeeeeee" S64("C") S64("C") S8("C") S8("C") "CCCe" S64("C")
    S8("C") S8("C") S8("C") "CCCCiiiiiiiiiieeeeee" S64("I") S64("I") S64("I") S8("I") S8("I")
    S8("I") S8("I") S8("e") S8("e") S8("e") S8("e") S8("I") S8("I") S8("I") S8("I") S8("I")
    S8("I") S8("I") "IIeeeeee" S64("I") S64("I") S64("I") S8("I") S8("I") S8("I") "IIIIIIee"
    S64("I") S64("I") S64("I") S64("I") S64("I") S64("I") "IIeeeeeeeeeeeeee" S64("I") S64("I")
    S64("I") S64("I") S8("I") S8("I") S8("I") S8("I") S8("I") S8("I") "Ieeeeeeeeeeeeeee" S64("I")
    S8("I") S8("I") S8("I") S8("I") S8("I") "IIIIII" S64("e") S64("e") S8("e") S8("e") S8("e")
    S8("e") "ee" S8("c") S8("c") S8("c") "cccccc" S64("e") S64("e") S64("e") S8("e") S8("e")
    S8("e") S8("e") "ee" S64("I") S8("I") "IIIeeeee" S64("I") S64("I") S64("I") S64("I")
    S64("I") S8("I") S8("I") S8("I") S8("I") S64("e") S8("e") S8("e") "e@" S8("e") S8("e")
    S8("e") "eeeeee" S64("@") S8("@") S8("@") S8("@") S8("@") S64("e") S64("e") S64("l")
    S64("l") S64("l") S8("l") S8("l") S8("l") S8("l") S8("l") S8("l") "eeeeeeeeeeeeeeee" S64("@")
    S64("@") S64("@") S8("@") S8("@") S8("@") S8("@") S8("@") S8("@") S8("@") "@@@@@@ee";

#endif
