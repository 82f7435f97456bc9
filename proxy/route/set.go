package route

import "math/bits"

// set is a set of small numbers: ranks of servers, or places among the owners of a request. Numbers below 64 take no
// memory of their own.
type set struct {
	low  uint64
	high []uint64 // of numbers from 64 on
}

// addNumber adds a number. A negative one, the place of no owner, is ignored.
func (s *set) addNumber(n int) {
	switch {
	case n < 0:
	case n < 64:
		s.low |= 1 << n
	default:
		if grow := n/64 - len(s.high); grow > 0 {
			s.high = append(s.high, make([]uint64, grow)...)
		}
		s.high[n/64-1] |= 1 << (n % 64)
	}
}

func (s *set) remove(n int) {
	switch {
	case n < 64:
		s.low &^= 1 << n
	case s.has(n):
		s.high[n/64-1] &^= 1 << (n % 64)
	}
}

func (s *set) has(n int) bool {
	if n < 64 {
		return s.low>>n&1 != 0
	}
	return n/64 <= len(s.high) && s.high[n/64-1]>>(n%64)&1 != 0
}

// count returns how many numbers are in the set.
func (s *set) count() (n int) {
	n = bits.OnesCount64(s.low)
	for _, w := range s.high {
		n += bits.OnesCount64(w)
	}
	return n
}

// all yields the numbers, ascending.
func (s *set) all(yield func(int) bool) {
	for i := range 1 + len(s.high) {
		for left := s.word(i); left != 0; left &= left - 1 {
			if !yield(64*i + bits.TrailingZeros64(left)) {
				return
			}
		}
	}
}

// word returns the bits of 64 numbers.
func (s *set) word(i int) uint64 {
	switch {
	case i == 0:
		return s.low
	case i <= len(s.high):
		return s.high[i-1]
	}
	return 0
}

// missing returns the least number that is not in the set.
func (s *set) missing() int {
	i := 0
	for s.word(i) == ^uint64(0) {
		i++
	}
	return 64*i + bits.TrailingZeros64(^s.word(i))
}

func (s *set) empty() bool { return s.count() == 0 }

// clear empties the set, and keeps its memory.
func (s *set) clear() {
	s.low = 0
	clear(s.high)
}
