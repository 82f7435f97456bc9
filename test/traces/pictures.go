package traces

import (
	"math/rand/v2"

	"github.com/psidecar/psidecar/cmd/psjob/model"
)

// DrawImages returns n pictures of side x side pixels, drawn from a seed: in those of
// a class the same few blots are bright, shifted a little and not always all of them.
// So a net can learn them without a data set, but not at once.
func DrawImages(n, side int, seed uint64) *model.Images {
	const blots, radius = 5, 2
	pixels := side * side
	data, labels := make([]byte, n*pixels), make([]byte, n)
	// The classes are drawn first, from the same seed: any number of pictures has the
	// same ones.
	var places [model.Classes][blots][2]int
	r := rand.New(rand.NewPCG(seed, 0x1d))
	for c := range places {
		for b := range places[c] {
			places[c][b] = [2]int{2 + r.IntN(side-4), 2 + r.IntN(side-4)}
		}
	}
	for i := range n {
		class := r.IntN(model.Classes)
		labels[i] = byte(class)
		picture := data[i*pixels : (i+1)*pixels]
		for _, at := range places[class] {
			if r.IntN(6) == 0 {
				continue
			}
			y, x := at[0]+r.IntN(3)-1, at[1]+r.IntN(3)-1
			for dy := -radius; dy <= radius; dy++ {
				for dx := -radius; dx <= radius; dx++ {
					if yy, xx := y+dy, x+dx; dy*dy+dx*dx <= radius*radius && yy >= 0 && yy < side && xx >= 0 && xx < side {
						picture[yy*side+xx] = byte(128 + r.IntN(128))
					}
				}
			}
		}
	}
	return model.NewImages(pixels, data, labels)
}
