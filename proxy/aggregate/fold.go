package aggregate

import (
	"encoding/binary"
	"iter"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// This file adds pushes whose key lists differ. A list cannot be changed: the server gets each
// push with its own. What two pushes have for the same keys is added up in one of them, and is
// zero in the other.

// leastPart is the part of a batch's values, one in so many, that another must take for its
// pushes to wait for that one's answer. Of less, package compact saves nothing: it spends a bit
// on each word to leave zeros out, and encodes values only if an eighth is saved.
const leastPart = 8

// leastMore is that part of a batch that has given an eighth to another already: these zeros are left
// out anyway, and the values that are given now are spared whole.
const leastMore = 64

// ascends reports whether there are keys, and each is greater than the one before. PS-lite
// demands it of its callers, but does not check it.
func (s *subject) ascends() bool {
	if len(s.keys) == 0 || len(s.keys)%8 != 0 {
		return false
	}
	keys := pslite.Keys(s.keys)
	for i := 1; i < keys.Len(); i++ {
		if keys.At(i-1) >= keys.At(i) {
			return false
		}
	}
	return true
}

// layOut sets row, if the values of each key are whole numbers of that many bytes.
func (s *subject) layOut(number int) {
	if !s.ascends() {
		return
	}
	n := len(s.keys) / 8
	if s.lens == nil {
		if s.size%n == 0 && s.size/n%number == 0 {
			s.row = s.size / n
		}
		return
	}
	lens, element, sum := pslite.Lens(s.lens), s.kind.Size(), 0
	if lens.Len() != n {
		return
	}
	for i := range n {
		length := int(lens.At(i)) * element
		if length < 0 || length%number != 0 {
			return
		}
		sum += length
	}
	if sum == s.size {
		s.row = element
	}
}

// mixes reports whether values of the same keys in pushes of two subjects can be added, and
// whether there may be such keys.
func (s *subject) mixes(o *subject) bool {
	if s.row == 0 || o.row == 0 || s.app != o.app || s.customer != o.customer || s.head != o.head || s.kind != o.kind {
		return false
	}
	a, b := s.span(), o.span()
	return a.First <= b.Last && b.First <= a.Last
}

// rows reads the keys of a subject whose row is set, one after the other.
type rows struct {
	s  *subject
	i  int // index of the key
	at int // where its values begin
}

func (r *rows) more() bool  { return 8*r.i < len(r.s.keys) }
func (r *rows) key() uint64 { return binary.LittleEndian.Uint64(r.s.keys[8*r.i:]) }

// length returns how many bytes of values the key has.
func (r *rows) length() int {
	if r.s.lens == nil {
		return r.s.row
	}
	return int(pslite.Lens(r.s.lens).At(r.i)) * r.s.row
}

// stays reports whether the key's values can be neither given nor added to.
func (r *rows) stays() bool { return r.s.stay != nil && r.s.stay[r.i] }

func (r *rows) next() {
	r.at += r.length()
	r.i++
}

// run is a stretch of n bytes of values that two subjects, a and b, have for the same keys.
type run struct {
	a, b  int // where it begins in each
	n     int
	first int // index of its first key in b
	keys  int
}

// commonRuns returns what a and b have for the same keys, in order. It leaves out keys that stay,
// and those that have different numbers of values.
func commonRuns(a, b *subject) iter.Seq[run] {
	return func(yield func(run) bool) {
		x, y := rows{s: a}, rows{s: b}
		var r run
		for x.more() && y.more() {
			switch k, l := x.key(), y.key(); {
			case k < l:
				x.next()
				continue
			case k > l:
				y.next()
				continue
			}
			n := x.length()
			switch {
			case n != y.length() || x.stays() || y.stays():
			case r.keys > 0 && r.a+r.n == x.at && r.b+r.n == y.at && r.first+r.keys == y.i:
				r.n += n
				r.keys++
			default:
				if r.keys > 0 && !yield(r) {
					return
				}
				r = run{a: x.at, b: y.at, n: n, first: y.i, keys: 1}
			}
			x.next()
			y.next()
		}
		if r.keys > 0 {
			yield(r)
		}
	}
}
