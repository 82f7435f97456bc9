// Package translate holds a model that the evaluation trains: a Transformer that
// translates between two languages that are made up.
package translate

import (
	"fmt"
	"math"
	"slices"

	"github.com/psidecar/psidecar/cmd/psjob/model"
)

// Model is a small Transformer (Vaswani et al. 2017): an encoder and a decoder of
// the same number of layers, with norms before each part rather than behind (Xiong et
// al. 2020), so that it learns without a warm-up. The words' embeddings are one group
// of keys with Width values each; all else is another of long values. A sample is a
// pair of sentences. Its loss is the mean over the target's words and the mark behind
// them; it is right if all of these are, each predicted after the right ones before
// it.
//
// The parameters are one flat list: the encoder's layers and its norm, the decoder's
// layers and its norm, the output layer. forward takes them from the front, backward
// from the back.
type Model struct {
	set              *Sentences
	shape            Shape
	seed             uint64
	encoder, decoder []*layer
	ends             [2]*norm   // of the encoder and the decoder
	words            *model.Net // from the decoder's end to the target's words
	dense            *model.Tensor
	batch            model.Columns
	groups           [2]model.Group
	source, target   sequence
	delta            []float32
}

// Shape says how large a [model.Model] is.
type Shape struct {
	Width  int // values of an embedding and of a row between layers; even
	Heads  int // of each attention; Width is a multiple
	Inner  int // units of the fully connected nets
	Layers int // of the encoder, and of the decoder
}

// Check returns the first fault of the shape.
func (s Shape) Check() error {
	if s.Width < 2 || s.Heads < 1 || s.Inner < 1 || s.Layers < 1 || s.Width%2 != 0 || s.Width%s.Heads != 0 {
		return fmt.Errorf("width %d, %d heads, %d units, %d layers: want 1 or more, and a width that is even and a multiple of the heads", s.Width, s.Heads, s.Inner, s.Layers)
	}
	return nil
}

// sequence is the sentences of a batch, one behind the other.
type sequence struct {
	columns []uint32
	spans   spans
	rows    []float32 // their embeddings with the place added
}

// layer is one of the encoder's or decoder's layers: self-attention, in a decoder
// attention to the encoder's output, and a net; each adds to its input and has a norm
// before it.
type layer struct {
	norms  []*norm
	self   *attention
	cross  *attention // nil: an encoder's
	inner  *model.Net
	rows   []float32 // the layer's output
	delta  []float32
	memory []float32 // the derivative with respect to the memory
	values int
}

// newLayer returns a layer of the encoder, or of the decoder.
func newLayer(s Shape, decodes bool) *layer {
	l := &layer{self: newAttention(s.Width, s.Heads, decodes), inner: model.NewNet(true, s.Width, s.Inner, s.Width), norms: []*norm{{width: s.Width}, {width: s.Width}}}
	if decodes {
		l.cross, l.norms = newAttention(s.Width, s.Heads, false), append(l.norms, &norm{width: s.Width})
	}
	l.values = len(l.initial(0))
	return l
}

// initial returns the parts' initial values in their order: a norm and what it stands
// before, the cross attention in a decoder only.
func (l *layer) initial(seed uint64) (w []float32) {
	w = append(l.norms[0].initial(), l.self.initial(seed)...)
	if l.cross != nil {
		w = append(append(w, l.norms[2].initial()...), l.cross.initial(seed+10_000)...)
	}
	return append(append(w, l.norms[1].initial()...), l.inner.Initial(seed+20_000)...)
}

// cutter hands out the parts of a flat list, in order, from the front or from the
// back.
type cutter struct{ list []float32 }

func (c *cutter) next(n int) []float32 {
	part := c.list[:n:n]
	c.list = c.list[n:]
	return part
}

// last hands out the part at the end.
func (c *cutter) last(n int) []float32 {
	at := len(c.list) - n
	part := c.list[at:]
	c.list = c.list[:at]
	return part
}

// New returns the model for the samples of a worker. Dense tensors take the
// keys of the ids after those of the words, one for each block of at most blockSize
// values.
func New(set *Sentences, s Shape, blockSize int, seed uint64, key func(id uint64) (uint64, error)) (*Model, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	m := &Model{set: set, shape: s, seed: seed, words: model.NewNet(true, s.Width, set.Vocabulary()), ends: [2]*norm{{width: s.Width}, {width: s.Width}}}
	var initial []float32
	for i := range s.Layers {
		l := newLayer(s, false)
		m.encoder, initial = append(m.encoder, l), append(initial, l.initial(seed+uint64(i)*100_000)...)
	}
	initial = append(initial, m.ends[0].initial()...)
	for i := range s.Layers {
		l := newLayer(s, true)
		m.decoder, initial = append(m.decoder, l), append(initial, l.initial(seed+uint64(i)*100_000+50_000)...)
	}
	initial = append(append(initial, m.ends[1].initial()...), m.words.Initial(seed+99)...)
	var err error
	m.dense, _, err = model.NewTensor(initial, set.NextID(), blockSize, key)
	return m, err
}

// Samples returns how many samples there are.
func (m *Model) Samples() int { return m.set.Len() }

// Groups returns the batch's embeddings, and the dense tensors.
func (m *Model) Groups(batch []int32) []model.Group {
	m.groups[0] = model.Group{Keys: m.batch.Of(m.set.Sparse(), batch), Width: m.shape.Width}
	m.groups[1] = m.dense.Group
	return m.groups[:]
}

// Score implements [model.Model].
func (m *Model) Score(batch []int32, params [][]float32, tally *model.Tally) {
	m.load(batch, params)
	m.predict(batch, params[0], tally)
}

// Gradient implements [model.Model].
func (m *Model) Gradient(batch []int32, params, grads [][]float32, tally *model.Tally) {
	m.load(batch, params)
	m.predict(batch, params[0], tally)
	w, g := cutter{m.dense.Values}, cutter{m.dense.Grad}
	n := m.words.Values()
	delta := m.words.Backward(w.last(n), m.delta, g.last(n))
	n = m.ends[1].values()
	delta = m.ends[1].backward(w.last(n), delta, g.last(n))
	// Every layer of the decoder has looked at the encoder's output: their
	// derivatives add up.
	memory := make([]float32, len(m.source.rows))
	for _, l := range slices.Backward(m.decoder) {
		n := l.values
		delta = l.backward(w.last(n), delta, g.last(n))
		addScaled(memory, 1, l.memory)
	}
	clear(grads[0])
	m.embed(grads[0], &m.target, delta, true)
	n = m.ends[0].values()
	delta = m.ends[0].backward(w.last(n), memory, g.last(n))
	for _, l := range slices.Backward(m.encoder) {
		n := l.values
		delta = l.backward(w.last(n), delta, g.last(n))
	}
	m.embed(grads[0], &m.source, delta, true)
	m.dense.Store(grads[1])
}

// load sets the parameters from pulled ones, and the sequences to the batch's.
func (m *Model) load(batch []int32, params [][]float32) {
	keys := m.batch.Of(m.set.Sparse(), batch)
	model.AddInitial(m.seed, keys, params[0], m.shape.Width, 0, 1)
	m.dense.Load(params[1])
	m.source.reset()
	m.target.reset()
	for _, s := range batch {
		columns, _, _ := m.set.Sparse().Sample(int(s))
		n := len(m.set.Pair(int(s)).Source)
		m.source.addColumns(columns[:n])
		m.target.addColumns(columns[n:])
	}
}

func (s *sequence) reset() { s.columns, s.spans = s.columns[:0], append(s.spans[:0], 0) }

func (s *sequence) addColumns(columns []uint32) {
	s.columns = append(s.columns, columns...)
	s.spans = append(s.spans, len(s.columns))
}

// embed sets rows to the embeddings of a sequence's words plus their places in the
// sentence or, with adds, adds rows, which are derivatives then, to the embeddings.
func (m *Model) embed(embeddings []float32, s *sequence, rows []float32, adds bool) {
	width := m.shape.Width
	for i, c := range s.columns {
		at := m.batch.At(c) * width
		e, row := embeddings[at:at+width], rows[i*width:(i+1)*width]
		if adds {
			addScaled(e, 1, row)
			continue
		}
		copy(row, e)
	}
	if adds {
		return
	}
	// Places are counted from the beginning of each sentence.
	for k := range len(s.spans) - 1 {
		for i := s.spans[k]; i < s.spans[k+1]; i++ {
			addPlace(rows[i*width:(i+1)*width], i-s.spans[k])
		}
	}
}

// addPlace adds sines and cosines that encode the place in a sentence (Vaswani et al.
// 2017, section 3.5).
func addPlace(row []float32, place int) {
	for j := 0; j < len(row); j += 2 {
		sin, cos := math.Sincos(float64(place) / math.Pow(10_000, float64(j)/float64(len(row))))
		row[j] += float32(sin)
		row[j+1] += float32(cos)
	}
}

// scores runs the loaded batch through the model, and returns a row of scores for
// each word of the target, of which the mark before it is the first: row i scores
// what comes after word i.
func (m *Model) scores(embeddings []float32) []float32 {
	w := cutter{m.dense.Values}
	x := resize(&m.source.rows, len(m.source.columns)*m.shape.Width)
	m.embed(embeddings, &m.source, x, false)
	for _, l := range m.encoder {
		x = l.forward(w.next(l.values), x, nil, m.source.spans, nil)
	}
	memory := m.ends[0].forward(w.next(m.ends[0].values()), x)
	x = resize(&m.target.rows, len(m.target.columns)*m.shape.Width)
	m.embed(embeddings, &m.target, x, false)
	for _, l := range m.decoder {
		x = l.forward(w.next(l.values), x, memory, m.target.spans, m.source.spans)
	}
	x = m.ends[1].forward(w.next(m.ends[1].values()), x)
	return m.words.Forward(w.next(m.words.Values()), x)
}

// predict counts the batch's predictions, and leaves the loss's derivative with
// respect to each score in m.delta.
func (m *Model) predict(batch []int32, embeddings []float32, tally *model.Tally) {
	out := m.scores(embeddings)
	vocabulary := m.set.Vocabulary()
	delta := resize(&m.delta, len(out))
	copy(delta, out)
	for k, s := range batch {
		target := m.set.Pair(int(s)).Target
		n := len(target) + 1
		loss, right := 0.0, true
		for i := range n {
			// Behind the last word comes the mark.
			want := uint32(0)
			if i < len(target) {
				want = target[i]
			}
			row := delta[(m.target.spans[k]+i)*vocabulary:][:vocabulary]
			score := float64(row[want])
			right = right && int(want) == largest(row)
			loss += softmax(row) - score
			row[want]--
			for j := range row {
				row[j] /= float32(n)
			}
		}
		tally.Class(right, loss/float64(n))
	}
}

// largest returns the index of the largest score, the first of equal ones.
func largest(row []float32) int {
	best := 0
	for i, v := range row {
		if v > row[best] {
			best = i
		}
	}
	return best
}

// Words translates a batch word by word, each time the one with the largest score, up
// to a mark or to twice as many words as the source has. params are as those of
// Score. Every word costs a pass over all sentences: it is for tests.
func (m *Model) Words(batch []int32, params [][]float32) [][]uint32 {
	m.load(batch, params)
	mark, _ := m.set.Column(0)
	all, ended := make([][]uint32, len(batch)), make([]bool, len(batch))
	for more := true; more; {
		m.target.reset()
		for _, words := range all {
			columns := []uint32{mark}
			for _, w := range words {
				c, _ := m.set.Column(w)
				columns = append(columns, c)
			}
			m.target.addColumns(columns)
		}
		out := m.scores(params[0])
		more = false
		for k, s := range batch {
			if ended[k] {
				continue
			}
			// The last row of a sentence scores the word that is to come.
			row := out[(m.target.spans[k+1]-1)*m.set.Vocabulary():][:m.set.Vocabulary()]
			w := uint32(largest(row))
			_, known := m.set.Column(w)
			if ended[k] = w == 0 || !known || len(all[k]) >= 2*len(m.set.Pair(int(s)).Source); !ended[k] {
				all[k] = append(all[k], w)
				more = true
			}
		}
	}
	return all
}

// Set returns the samples.
func (m *Model) Set() *Sentences { return m.set }

// forward returns the layer's output. memory and columns are nil in an encoder.
func (l *layer) forward(w, input, memory []float32, rows, columns spans) []float32 {
	c := cutter{w}
	x := resize(&l.rows, len(input))
	copy(x, input)
	y := l.norms[0].forward(c.next(l.norms[0].values()), x)
	addScaled(x, 1, l.self.forward(c.next(l.self.values()), y, y, rows, rows))
	if l.cross != nil {
		y = l.norms[2].forward(c.next(l.norms[2].values()), x)
		addScaled(x, 1, l.cross.forward(c.next(l.cross.values()), y, memory, rows, columns))
	}
	y = l.norms[1].forward(c.next(l.norms[1].values()), x)
	addScaled(x, 1, l.inner.Forward(c.next(l.inner.Values()), y))
	return x
}

// backward adds the parameters' gradient to grad and returns the derivative with
// respect to the input; that with respect to the memory is in l.memory.
func (l *layer) backward(w, delta, grad []float32) []float32 {
	c, g := cutter{w}, cutter{grad}
	by := resize(&l.delta, len(delta)) // with respect to the residual stream, into which each part adds
	copy(by, delta)
	// Parts come in reverse order. Each adds to the stream that passes it by, so that
	// the stream's derivative goes to it and past it.
	n := l.inner.Values()
	d := l.inner.Backward(c.last(n), delta, g.last(n))
	n = l.norms[1].values()
	addScaled(by, 1, l.norms[1].backward(c.last(n), d, g.last(n)))
	if l.cross != nil {
		n = l.cross.values()
		d, l.memory = l.cross.backward(c.last(n), slices.Clone(by), g.last(n))
		n = l.norms[2].values()
		addScaled(by, 1, l.norms[2].backward(c.last(n), d, g.last(n)))
	}
	n = l.self.values()
	d, self := l.self.backward(c.last(n), slices.Clone(by), g.last(n))
	addScaled(d, 1, self)
	n = l.norms[0].values()
	addScaled(by, 1, l.norms[0].backward(c.last(n), d, g.last(n)))
	return by
}

// Split sets splitters behind the ReLUs of the encoder's and decoder's layers, by
// their numbers from 1 on, in the place of those before.
func (m *Model) Split(encoder, decoder map[int]model.Splitter) {
	for i, layers := range [][]*layer{m.encoder, m.decoder} {
		for k, l := range layers {
			l.inner.Splits = nil
			if s := [2]map[int]model.Splitter{encoder, decoder}[i][k+1]; s != nil {
				l.inner.Splits = map[int]model.Splitter{1: s}
			}
		}
	}
}
