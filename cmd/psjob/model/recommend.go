package model

// Recommend is a small recommender network in the form of DLRM (Naumov et al. 2019):
// numbers go through a bottom net, categories through embedding tables, all vectors
// are multiplied with each other, and a top net turns the products into log-odds.
// Embeddings are one group of keys with Width values each, of which a batch uses few;
// the nets' dense tensors are another of long values, all of which every step uses.
type Recommend struct {
	set         *Clicks
	width       int
	seed        uint64
	bottom, top *Net
	dense       *Tensor
	batch       Columns
	groups      [2]Group
	numbers     []float32 // of the batch
	crossed     []float32 // input of the top net
	delta       []float32
	bottomDelta []float32
}

// vectors is how many vectors are multiplied pairwise: one of each category and the
// bottom net's.
const vectors = ClickCategories + 1

// RecommendShape says how large the nets of a [Recommend] are.
type RecommendShape struct {
	Embedding   int   // values of an embedding, and of the bottom net's output
	Bottom, Top []int // units of the nets' hidden layers
}

// NewRecommend returns the model for the samples of a worker. Dense tensors take the
// keys of the ids after those of the embeddings, one for each block of at most
// blockSize values.
func NewRecommend(set *Clicks, s RecommendShape, blockSize int, seed uint64, key func(id uint64) (uint64, error)) (*Recommend, error) {
	bottom := append(append([]int{ClickNumbers}, s.Bottom...), s.Embedding)
	top := append(append([]int{s.Embedding + vectors*(vectors-1)/2}, s.Top...), 1)
	m := &Recommend{set: set, width: s.Embedding, seed: seed, bottom: NewNet(false, bottom...), top: NewNet(true, top...)}
	m.bottom.begins = true
	initial := append(m.bottom.Initial(seed), m.top.Initial(seed+100)...)
	var err error
	m.dense, _, err = NewTensor(initial, set.NextID(), blockSize, key)
	return m, err
}

// Samples returns how many samples there are.
func (m *Recommend) Samples() int { return m.set.Len() }

// Groups returns the batch's embeddings, and the dense tensors.
func (m *Recommend) Groups(batch []int32) []Group {
	m.groups[0] = Group{Keys: m.batch.Of(m.set.Sparse(), batch), Width: m.width}
	m.groups[1] = m.dense.Group
	return m.groups[:]
}

// Score implements [Model].
func (m *Recommend) Score(batch []int32, params [][]float32, tally *Tally) {
	m.predict(batch, params, tally)
}

// Gradient implements [Model].
func (m *Recommend) Gradient(batch []int32, params, grads [][]float32, tally *Tally) {
	m.predict(batch, params, tally)
	bottomValues := m.bottom.Values()
	dCrossed := m.top.Backward(m.dense.Values[bottomValues:], m.delta, m.dense.Grad[bottomValues:])
	dBottom := resize(&m.bottomDelta, len(batch)*m.width)
	clear(dBottom)
	clear(grads[0])
	bottomOut := m.bottom.outputs[len(m.bottom.outputs)-1]
	in := m.top.sizes[0]
	for r, s := range batch {
		var v, d [vectors][]float32
		v[0], d[0] = bottomOut[r*m.width:(r+1)*m.width], dBottom[r*m.width:(r+1)*m.width]
		m.embeddings(s, params[0], v[1:])
		m.embeddings(s, grads[0], d[1:])
		dRow := dCrossed[r*in : (r+1)*in]
		addScaled(d[0], 1, dRow[:m.width])
		at := m.width
		for i := range vectors {
			for j := range i {
				// The derivative of a product with respect to each factor is the
				// other, in the order in which predict made them. d refers to the
				// gradient itself, so that rows that share an embedding add up.
				addScaled(d[i], dRow[at], v[j])
				addScaled(d[j], dRow[at], v[i])
				at++
			}
		}
	}
	m.bottom.Backward(m.dense.Values[:bottomValues], dBottom, m.dense.Grad[:bottomValues])
	m.dense.Store(grads[1])
}

// predict counts the batch's predictions, and leaves the derivative with respect to
// the top net's output in m.delta.
func (m *Recommend) predict(batch []int32, params [][]float32, tally *Tally) {
	keys := m.batch.Of(m.set.Sparse(), batch)
	// The pulled values are differences from the initial ones, which are added in
	// place.
	AddInitial(m.seed, keys, params[0], m.width, 0, 0.1)
	m.dense.Load(params[1])
	m.numbers = m.numbers[:0]
	for _, s := range batch {
		m.numbers = append(m.numbers, m.set.Numbers(int(s))...)
	}
	bottomValues := m.bottom.Values()
	bottomOut := m.bottom.Forward(m.dense.Values[:bottomValues], m.numbers)
	m.crossed = m.crossed[:0]
	for r, s := range batch {
		var v [vectors][]float32
		v[0] = bottomOut[r*m.width : (r+1)*m.width]
		m.embeddings(s, params[0], v[1:])
		// The top net gets the bottom net's output and the product of every pair, as
		// in DLRM's dot interaction.
		m.crossed = append(m.crossed, v[0]...)
		for i := range vectors {
			for j := range i {
				m.crossed = append(m.crossed, dot(v[i], v[j]))
			}
		}
	}
	out := m.top.Forward(m.dense.Values[bottomValues:], m.crossed)
	delta := resize(&m.delta, len(out))
	for r, s := range batch {
		_, _, yes := m.set.Sparse().Sample(int(s))
		tally.Binary(float64(out[r]), yes)
		delta[r] = slope(float64(out[r]), yes)
	}
}

// embeddings sets v to the parts of list that belong to a sample's categories, in
// place.
func (m *Recommend) embeddings(sample int32, list []float32, v [][]float32) {
	columns, _, _ := m.set.Sparse().Sample(int(sample))
	for i, c := range columns {
		at := m.batch.At(c) * m.width
		v[i] = list[at : at+m.width]
	}
}
