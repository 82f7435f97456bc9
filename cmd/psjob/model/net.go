package model

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// A Net is a chain of fully connected layers with ReLU between them. Its parameters
// are one flat list: for each layer the weights, one row of inputs for each output,
// then the biases. Forward keeps the outputs of all layers, which Backward needs; one
// batch at a time.
type Net struct {
	sizes   []int            // of the input, of each layer's output
	lastRaw bool             // no ReLU after the last layer
	begins  bool             // the input is data: its derivative is not needed
	outputs [][]float32      // of each layer, the input first; row by row
	deltas  [][]float32      // likewise, the derivatives
	Splits  map[int]Splitter // by the number of the layer that they follow
}

func NewNet(lastRaw bool, sizes ...int) *Net {
	return &Net{sizes: sizes, lastRaw: lastRaw,
		outputs: make([][]float32, len(sizes)), deltas: make([][]float32, len(sizes))}
}

// relu reports whether layer l's outputs are clipped at zero.
func (n *Net) relu(l int) bool { return !n.lastRaw || l < len(n.sizes)-1 }

// Values returns the number of parameters.
func (n *Net) Values() int {
	total := 0
	for l := 1; l < len(n.sizes); l++ {
		total += n.sizes[l] * (n.sizes[l-1] + 1)
	}
	return total
}

// Initial returns initial values: weights uniform with variance 2/inputs (He et al.
// 2015), biases zero. The last layer's weights are smaller, so that the first
// predictions are close to even.
func (n *Net) Initial(seed uint64) []float32 {
	w := make([]float32, 0, n.Values())
	for l := 1; l < len(n.sizes); l++ {
		in, out := n.sizes[l-1], n.sizes[l]
		scale := float32(math.Sqrt(6 / float64(in)))
		if n.lastRaw && l == len(n.sizes)-1 {
			scale /= 4
		}
		for i := range in * out {
			w = append(w, scale*unitRandom(seed+uint64(l), uint64(i)))
		}
		w = append(w, make([]float32, out)...)
	}
	return w
}

// Forward computes the outputs of a batch of rows. The result belongs to the net, and
// so does input until Backward is done.
func (n *Net) Forward(w, input []float32) []float32 {
	n.outputs[0] = input
	rows := len(input) / n.sizes[0]
	for l := 1; l < len(n.sizes); l++ {
		in, out := n.sizes[l-1], n.sizes[l]
		weights, biases := w[:in*out], w[in*out:in*out+out]
		w = w[in*out+out:]
		y := resize(&n.outputs[l], rows*out)
		for r := range rows {
			copy(y[r*out:], biases)
		}
		blas32.Gemm(blas.NoTrans, blas.Trans, 1, dense(n.outputs[l-1], in), dense(weights, in), 1, dense(y, out))
		if n.relu(l) {
			for i, v := range y {
				y[i] = max(v, 0)
			}
		}
		// The splitter changes what the next layer sees, and what backward will take
		// for the output.
		if s := n.Splits[l]; s != nil {
			s.Forward(y, out)
		}
	}
	return n.outputs[len(n.sizes)-1]
}

// Backward adds the parameters' gradient to grad, given the loss's derivative with
// respect to each output, which it changes. It returns the derivative with respect to
// the input, unless the net begins with data. w are the parameters that Forward was
// given.
func (n *Net) Backward(w, delta, grad []float32) []float32 {
	end := n.Values()
	rows := len(delta) / n.sizes[len(n.sizes)-1]
	for l := len(n.sizes) - 1; l > 0; l-- {
		in, out := n.sizes[l-1], n.sizes[l]
		from := end - out*(in+1)
		weights := w[from : from+in*out]
		gw, gb := grad[from:from+in*out], grad[from+in*out:end]
		end = from
		if s := n.Splits[l]; s != nil {
			s.Backward(delta, out)
		}
		if n.relu(l) {
			// An output of zero was clipped, or set to zero by a splitter: neither
			// lets a derivative through.
			for i, v := range n.outputs[l] {
				if v == 0 {
					delta[i] = 0
				}
			}
		}
		blas32.Gemm(blas.Trans, blas.NoTrans, 1, dense(delta, out), dense(n.outputs[l-1], in), 1, dense(gw, in))
		for r := range rows {
			addScaled(gb, 1, delta[r*out:(r+1)*out])
		}
		if l == 1 && n.begins {
			return nil
		}
		before := resize(&n.deltas[l-1], rows*in)
		blas32.Gemm(blas.NoTrans, blas.NoTrans, 1, dense(delta, out), dense(weights, in), 0, dense(before, in))
		delta = before
	}
	return delta
}

// dense returns a flat list, row after row, as a matrix. It is not copied.
func dense(list []float32, columns int) blas32.General {
	return blas32.General{Rows: len(list) / columns, Cols: columns, Stride: columns, Data: list}
}

// addScaled adds f times x to y; dot is the inner product.
func addScaled(y []float32, f float32, x []float32) { blas32.Axpy(f, vector(x), vector(y)) }

func dot(x, y []float32) float32 { return blas32.Dot(vector(x), vector(y)) }

func vector(x []float32) blas32.Vector { return blas32.Vector{N: len(x), Inc: 1, Data: x} }

// resize returns a list's memory with n elements of any content, grown if need be.
func resize(list *[]float32, n int) []float32 {
	*list = slices.Grow((*list)[:0], n)[:n]
	return *list
}

// A Tensor is a flat list of values that travels as blocks: each block is one key
// with a long value. Keys may be in another order than blocks, since a key map
// scatters them.
type Tensor struct {
	initial []float32
	Group   Group
	blocks  []block   // in the order of their keys
	Values  []float32 // the parameters of the step, in the flat order
	Grad    []float32 // likewise, their gradient
}

type block struct {
	key      uint64
	from, to int // in the flat list
}

// NewTensor cuts values into blocks of at most size and gives block i the key of id
// first+i. It returns the next free id.
func NewTensor(initial []float32, first uint64, size int, key func(id uint64) (uint64, error)) (*Tensor, uint64, error) {
	t := &Tensor{initial: initial, Values: make([]float32, len(initial)), Grad: make([]float32, len(initial))}
	for from := 0; from < len(initial); from += size {
		k, err := key(first)
		if err != nil {
			return nil, 0, fmt.Errorf("key of a dense tensor: %w", err)
		}
		t.blocks = append(t.blocks, block{k, from, min(from+size, len(initial))})
		first++
	}
	slices.SortFunc(t.blocks, func(a, b block) int { return cmp.Compare(a.key, b.key) })
	// Sorted by key, as a request must be. Two blocks with one key would be added up
	// by the server.
	for i, b := range t.blocks {
		if i > 0 && b.key == t.blocks[i-1].key {
			return nil, 0, fmt.Errorf("two blocks of a dense tensor have the key %d", b.key)
		}
		t.Group.Keys = append(t.Group.Keys, b.key)
		t.Group.Lens = append(t.Group.Lens, int32(b.to-b.from))
	}
	return t, first, nil
}

// Load sets Values from pulled ones, which are in the order of the keys.
func (t *Tensor) Load(pulled []float32) {
	at := 0
	for _, b := range t.blocks {
		for i := b.from; i < b.to; i++ {
			t.Values[i] = t.initial[i] + pulled[at]
			at++
		}
	}
}

// Store writes Grad in the order of the keys and clears it.
func (t *Tensor) Store(pushed []float32) {
	at := 0
	for _, b := range t.blocks {
		at += copy(pushed[at:], t.Grad[b.from:b.to])
	}
	clear(t.Grad)
}
