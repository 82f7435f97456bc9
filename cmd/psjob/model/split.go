package model

// Splitter stands where a net is split among machines: it sees the activations that
// go from one part to the next, one row a sample, and may change them. With it DCT-MP
// can be evaluated on one machine.
type Splitter interface {
	Forward(activations []float32, width int)
	// Backward is shown the derivatives with respect to the activations of the last
	// Forward, and may change them.
	Backward(gradients []float32, width int)
}

// Split sets splitters behind layers of the net, by the layer's number from 1 on, in
// the place of those before.
func (m *Image) Split(behind map[int]Splitter) { m.net.Splits = behind }

// Split is [Image.Split] for both nets.
func (m *Recommend) Split(bottom, top map[int]Splitter) {
	m.bottom.Splits, m.top.Splits = bottom, top
}
