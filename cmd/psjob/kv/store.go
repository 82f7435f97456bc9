package kv

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
)

// MaxValueLength is how many values one key may have at most.
const MaxValueLength = 1 << 28

// A Store holds keys with one or more float32 values each. It is not safe for
// concurrent use.
//
// Values of all keys lie one behind the other in values, in the order of the keys'
// numbers. While all keys have the same number of values, width, a key's place is
// computed; as soon as one differs, start has the place of each, and width is 0.
// first, second and sums have a number for each value if the rule needs them.
type Store struct {
	settings StoreSettings
	apply    update
	index    StoreIndex
	width    int   // values of a key while all keys have the same number; else 0
	start    []int // where each key's values begin, with an end; nil while width > 0
	values   []float32
	first    []float32 // the rule's own memory, one per value, where it has any
	second   []float32
	sums     []int64   // gradients of the pending step, in units of 2^-40
	pending  []int32   // by key number: 1 + the step that sums holds, 0 for none
	settled  []float32 // a step's sum as floats; reused
	numbers  []uint32  // of the keys of the request at hand; reused
}

// NewStore returns an empty store.
func NewStore(s StoreSettings) (*Store, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	s = s.withDefaults()
	return &Store{settings: s, apply: s.update()}, nil
}

// Len returns the number of keys that were touched, by pulls too.
func (s *Store) Len() int { return s.index.Len() }

// Push applies vals to keys: len(vals)/len(keys) values each, or lens[i] for keys[i]
// if lens is not nil. step is the training step of the sender; only a synchronous
// store looks at it. On an error the store is as it was or, for a value that is not
// finite, with the keys before it changed.
func (s *Store) Push(step int32, keys []uint64, vals []float32, lens []int32) error {
	each, err := shape(len(keys), len(vals), lens)
	if err != nil {
		return fmt.Errorf("push of %d keys: %w", len(keys), err)
	}
	numbers, err := s.touch(keys, each, lens)
	if err != nil {
		return fmt.Errorf("push of %d keys: %w", len(keys), err)
	}
	// The fast way: no lengths to look at, and a loop of its own for the rule.
	if s.width == 1 && !s.settings.Synchronous {
		s.apply(s, numbers, vals)
		return nil
	}
	// vals is walked along with the keys: a key's part ends where the next one's
	// begins.
	at := 0
	for i, n := range numbers {
		k := each
		if lens != nil {
			k = int(lens[i])
		}
		part := vals[at : at+k]
		at += k
		if !s.settings.Synchronous {
			s.applyRange(n, part)
			continue
		}
		if err := s.collect(step, n, part); err != nil {
			return fmt.Errorf("push of key %d: %w", keys[i], err)
		}
	}
	return nil
}

// Pull appends the values of keys to dst. A key that nobody pushed has zeros: lens[i]
// of them, or the settings' ValueLength if lens is nil. It gets a number by that, so
// that its length is fixed.
func (s *Store) Pull(step int32, keys []uint64, lens []int32, dst []float32) ([]float32, error) {
	numbers, err := s.touch(keys, 0, lens)
	if err != nil {
		return dst, fmt.Errorf("pull of %d keys: %w", len(keys), err)
	}
	// The pull belongs to a step, and sees the sums of all steps before it.
	if s.settings.Synchronous {
		for _, n := range numbers {
			// The sum of an earlier step is complete, since a worker only pushes for
			// this one after the barrier.
			s.applyStep(step, n)
		}
	}
	if s.width == 1 {
		at := len(dst)
		dst = slices.Grow(dst, len(keys))[:at+len(keys)]
		out := dst[at:]
		for i, n := range numbers {
			out[i] = s.values[n]
		}
		return dst, nil
	}
	for _, n := range numbers {
		from, to := s.span(n)
		dst = append(dst, s.values[from:to]...)
	}
	return dst, nil
}

// Lengths appends the number of values of each key to dst; keys that nobody touched
// have none.
func (s *Store) Lengths(keys []uint64, dst []int32) []int32 {
	for _, key := range keys {
		k := 0
		if n, ok := s.index.Find(key); ok {
			from, to := s.span(n)
			k = to - from
		}
		dst = append(dst, int32(k))
	}
	return dst
}

// Digest returns a SHA-256 of all keys, in ascending order, and the bits of their
// values. Pending sums count as applied, for good: it is for the end of a job. Two
// runs that agree have made the same model.
func (s *Store) Digest() string {
	if s.settings.Synchronous {
		for n := range s.pending {
			s.applyStep(math.MaxInt32, uint32(n))
		}
	}
	keys := s.index.Keys()
	order := make([]uint32, len(keys))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return cmp.Compare(keys[a], keys[b]) })
	hash := sha256.New()
	var line []byte
	for _, n := range order {
		from, to := s.span(n)
		line = binary.LittleEndian.AppendUint64(line[:0], keys[n])
		// The length is part of the sum: without it a value could move from one key
		// to the next unnoticed.
		line = binary.LittleEndian.AppendUint64(line, uint64(to-from))
		for _, v := range s.values[from:to] {
			line = binary.LittleEndian.AppendUint32(line, math.Float32bits(v))
		}
		hash.Write(line)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// shape returns how many values each key has if lens is nil, after checking that the
// values fit.
func shape(keys, vals int, lens []int32) (each int, err error) {
	if lens == nil {
		if keys == 0 {
			return 0, nil
		}
		if vals%keys != 0 || vals == 0 {
			return 0, fmt.Errorf("%d values do not divide by %d keys", vals, keys)
		}
		return vals / keys, nil
	}
	if len(lens) != keys {
		return 0, fmt.Errorf("%d lengths for %d keys", len(lens), keys)
	}
	sum := 0
	// Bounded one by one, so that their sum cannot overflow.
	for i, l := range lens {
		if l < 0 || l > MaxValueLength {
			return 0, fmt.Errorf("length %d of key number %d: want 0 to %d", l, i, MaxValueLength)
		}
		sum += int(l)
	}
	if sum != vals {
		return 0, fmt.Errorf("lengths sum to %d, but got %d values", sum, vals)
	}
	return 0, nil
}

// touch returns the keys' numbers and makes room for new keys. each is the number of
// values that the request says a key has, 0 if it does not say.
func (s *Store) touch(keys []uint64, each int, lens []int32) ([]uint32, error) {
	s.numbers = slices.Grow(s.numbers[:0], len(keys))[:len(keys)]
	before := s.index.Len()
	s.index.Numbers(keys, s.numbers)
	// The usual case: no new key, and nothing to compare.
	if s.index.Len() == before && lens == nil && (each == 0 || each == s.width) {
		return s.numbers, nil
	}
	var failed error // new keys get their room all the same: they have numbers
	for i, n := range s.numbers {
		k := each
		if lens != nil {
			k = int(lens[i])
		}
		if int(n) >= before {
			if lens == nil && each == 0 {
				k = s.settings.ValueLength
			}
			s.appendKey(k)
			before++
			continue
		}
		from, to := s.span(n)
		if (each > 0 || lens != nil) && to-from != k {
			failed = fmt.Errorf("key %d has %d values, the request says %d", keys[i], to-from, k)
		}
	}
	return s.numbers, failed
}

// appendKey makes room for the k values of the key with the next number.
func (s *Store) appendKey(k int) {
	if s.start == nil && s.width == 0 && k > 0 { // the first key
		s.width = k
	}
	if s.start == nil && (k != s.width || k == 0) { // lengths differ from here on
		s.start = []int{0}
		for at := s.width; s.width > 0 && at <= len(s.values); at += s.width {
			s.start = append(s.start, at)
		}
		s.width = 0
	}
	s.values = grow(s.values, k)
	if s.start != nil {
		s.start = append(s.start, len(s.values))
	}
	// What the rule keeps grows along with the values, number by number.
	memory := s.settings.memory()
	if memory > 0 {
		s.first = grow(s.first, k)
	}
	if memory > 1 {
		s.second = grow(s.second, k)
	}
	if s.settings.Synchronous {
		s.sums = grow(s.sums, k)
		s.pending = grow(s.pending, 1)
	}
}

func grow[T any](list []T, n int) []T {
	at := len(list)
	list = slices.Grow(list, n)[:at+n]
	clear(list[at:])
	return list
}

// span returns where a key's values begin and end.
func (s *Store) span(n uint32) (from, to int) {
	if s.start == nil {
		return int(n) * s.width, int(n+1) * s.width
	}
	return s.start[n], s.start[n+1]
}

// unit is the resolution of a summed gradient. largest keeps a sum of 2^16 workers'
// gradients within 63 bits: 2^16 x 2^6 x 2^40 = 2^62.
const (
	unit    = 1.0 / (1 << 40)
	largest = 1 << 6
)

// collect adds a gradient to the sum of its step, in fixed point: integer sums are
// the same in any order.
func (s *Store) collect(step int32, n uint32, gradient []float32) error {
	s.applyStep(step, n)
	// A worker that is behind its own barrier: its gradient would be added to the
	// wrong step.
	if s.pending[n] > step+1 {
		return fmt.Errorf("it belongs to step %d, but step %d has begun", step, s.pending[n]-1)
	}
	from, to := s.span(n)
	sums := s.sums[from:to]
	for i, g := range gradient {
		if g == 0 { // most are, where a proxy held values back
			continue
		}
		// Written so that NaN is refused, too.
		if !(math.Abs(float64(g)) <= largest) {
			return fmt.Errorf("gradient %v at step %d: want at most %d; lower the learning rate", g, step, largest)
		}
		sums[i] += int64(math.RoundToEven(float64(g) / unit))
	}
	s.pending[n] = step + 1
	return nil
}

// applyStep applies the pending sum if it is of an earlier step.
func (s *Store) applyStep(step int32, n uint32) {
	if s.pending[n] == 0 || s.pending[n] > step {
		return
	}
	from, to := s.span(n)
	sums := s.sums[from:to]
	s.settled = slices.Grow(s.settled[:0], len(sums))[:len(sums)]
	for i, sum := range sums {
		s.settled[i] = float32(float64(sum) * unit)
	}
	clear(sums)
	s.applyAt(from, s.settled)
	s.pending[n] = 0
}
