package spare

// keep is what a request to pull says about values that its client keeps. Both sides note, by key, which
// value an answer had to the last such request; a value that is still the same need not be sent again.
type keep byte

const (
	keepNone  keep = iota // the answer's values are not kept
	keepAnew              // they are kept, and all are sent
	keepOrNot             // they are kept, and those that are kept already may be left out
)

const (
	// mostNoted is of how many keys a server notes for a link what the client keeps. All values of others are
	// sent.
	mostNoted = 1 << 16
	// leftOut is the length of a value that is left out.
	leftOut = 1<<32 - 1
)

// Reserver bounds memory. Neither method blocks.
type Reserver interface {
	TryReserve(n int) bool
	Unreserve(n int)
}

// notes are what a server knows that a link's client keeps: by key, the version of its value. At most mostNoted
// keys are in it.
type notes map[uint64]uint64

// kept are the values that a client keeps of a link's answers. It is not safe for concurrent use.
//
// Invariants: what the server has noted for a key is the value here, once all requests in flight are answered, or the
// next request for the key keeps anew. A key is here while it has a value or a request in flight. A value that no
// request in flight needs is of an answer that is reserved; what requests in flight need is kept without, if there is
// no memory.
type kept struct {
	memory Reserver // nil: nothing is kept
	values map[uint64]*keptValue
}

// keptValue is the value of a key. value and of are nil while there is none.
type keptValue struct {
	value    []byte
	of       *keptAnswer
	inFlight int  // requests on the link that keep it
	needs    int  // those of them from whose answers it may be left out
	scarce   bool // there was no memory for it
}

// keptAnswer is the memory of an answer, which its values share.
type keptAnswer struct {
	bytes, values int
	reserved      bool
}

// addRequest notes that a request to pull goes to the server, and returns what it says about values.
func (k *kept) addRequest(pieces []Piece) keep {
	if k.memory == nil {
		return keepNone
	}
	how := keepOrNot
	for i := range pieces {
		v := k.values[pieces[i].Key]
		if v == nil {
			v = &keptValue{scarce: true}
			k.values[pieces[i].Key] = v
		}
		if v.inFlight++; v.scarce {
			how = keepAnew
		}
	}
	for i := range pieces {
		v := k.values[pieces[i].Key]
		if how == keepOrNot {
			v.needs++
		}
		v.scarce = false // as far as is known
	}
	return how
}

// takeAnswer notes the answer to a request for which addRequest has returned how, and puts values where they were
// left out; bytes is the answer's memory. spared is how many bytes were left out. ok is false if the server could
// not leave them out.
func (k *kept) takeAnswer(how keep, pieces []Piece, values [][]byte, bytes int) (spared int, ok bool) {
	answer := &keptAnswer{bytes: bytes}
	for i := range values { // there are none if it failed
		v := k.values[pieces[i].Key]
		switch {
		case values[i] != nil && how == keepNone:
		case values[i] != nil:
			k.setValue(v, values[i], answer)
		case how != keepOrNot || v.value == nil:
			return 0, false
		default:
			values[i] = v.value
			spared += len(v.value)
		}
	}
	if how == keepNone {
		return 0, true
	}
	answer.reserved = answer.values > 0 && k.memory.TryReserve(bytes)
	for i := range pieces {
		v := k.values[pieces[i].Key]
		v.inFlight--
		if how == keepOrNot {
			v.needs--
		}
	}
	for i := range pieces {
		v := k.values[pieces[i].Key]
		if v == nil { // the key was there before
			continue
		}
		v.scarce = v.of == nil || !v.of.reserved
		if v.scarce && v.needs == 0 {
			k.setValue(v, nil, nil)
		}
		if v.value == nil && v.inFlight == 0 {
			delete(k.values, pieces[i].Key)
		}
	}
	return spared, true
}

// setValue replaces a value.
func (k *kept) setValue(v *keptValue, value []byte, of *keptAnswer) {
	if old := v.of; old != nil {
		if old.values--; old.values == 0 && old.reserved {
			k.memory.Unreserve(old.bytes)
		}
	}
	if v.value, v.of = value, of; of != nil {
		of.values++
	}
}

// forgetAll forgets everything: the link has ended.
func (k *kept) forgetAll() {
	for _, v := range k.values {
		k.setValue(v, nil, nil)
	}
	clear(k.values)
}
