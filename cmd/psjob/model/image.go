package model

import (
	"math"
	"slices"
)

// Image classifies small pictures by a net of hidden layers. Every step uses all of
// its parameters: its dense tensors travel as long values, a block a key.
type Image struct {
	set    *Images
	net    *Net
	tensor *Tensor
	input  []float32
	delta  []float32
	group  [1]Group
}

// NewImage returns the model for the samples of a worker. Its keys are those of the
// ids from 1 on, one for each block of at most blockSize values.
func NewImage(set *Images, hidden []int, blockSize int, seed uint64, key func(id uint64) (uint64, error)) (*Image, error) {
	m := &Image{set: set, net: NewNet(true, slices.Concat([]int{set.Pixels()}, hidden, []int{Classes})...)}
	m.net.begins = true
	var err error
	m.tensor, _, err = NewTensor(m.net.Initial(seed), 1, blockSize, key)
	return m, err
}

// Samples returns how many samples there are.
func (m *Image) Samples() int { return m.set.Len() }

// Groups returns the whole net as one group.
func (m *Image) Groups([]int32) []Group {
	m.group[0] = m.tensor.Group
	return m.group[:]
}

// Initial returns the parameters' initial values, in the order of their keys.
func (m *Image) Initial() []float32 {
	var values []float32
	for _, b := range m.tensor.blocks {
		values = append(values, m.tensor.initial[b.from:b.to]...)
	}
	return values
}

// Inputs returns, for each key in order, the pixel whose weight its value is, or -1
// for a value that every picture uses. The net must have blocks of one value.
func (m *Image) Inputs() []int {
	var pixels []int
	inputs, hidden := m.net.sizes[0], m.net.sizes[1]
	for _, b := range m.tensor.blocks {
		if b.from < inputs*hidden {
			pixels = append(pixels, b.from%inputs)
		} else {
			pixels = append(pixels, -1)
		}
	}
	return pixels
}

// Gradient implements [Model].
func (m *Image) Gradient(batch []int32, params, grads [][]float32, tally *Tally) {
	m.predict(batch, params[0], tally)
	m.net.Backward(m.tensor.Values, m.delta, m.tensor.Grad)
	m.tensor.Store(grads[0])
}

// Score implements [Model].
func (m *Image) Score(batch []int32, params [][]float32, tally *Tally) {
	m.predict(batch, params[0], tally)
}

// predict counts the batch's predictions, and leaves the loss's derivative with
// respect to each output, softmax minus one-hot, in m.delta.
func (m *Image) predict(batch []int32, params []float32, tally *Tally) {
	m.tensor.Load(params)
	m.input = m.input[:0]
	for _, s := range batch {
		m.input = m.set.Append(m.input, int(s))
	}
	out := m.net.Forward(m.tensor.Values, m.input)
	delta := resize(&m.delta, len(out))
	for i, s := range batch {
		row := out[i*Classes : (i+1)*Classes]
		d := delta[i*Classes : (i+1)*Classes]
		label := m.set.Label(int(s))
		// The largest score is subtracted before the exponentials, so that none
		// overflows.
		best, sum := 0, 0.0
		for c, v := range row {
			if v > row[best] {
				best = c
			}
		}
		for c, v := range row {
			e := math.Exp(float64(v - row[best]))
			d[c] = float32(e)
			sum += e
		}
		loss := math.Log(sum) - float64(row[label]-row[best])
		tally.Class(best == label, loss)
		for c := range d {
			d[c] = float32(float64(d[c]) / sum)
		}
		d[label]--
	}
}
