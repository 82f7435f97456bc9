package advice

import "image/color"

// colours of pushes and pulls, which differ in grey too (Okabe and Ito).
var colours = [2]color.Color{color.RGBA{0x00, 0x72, 0xb2, 255}, color.RGBA{0xe6, 0x9f, 0x00, 255}}
