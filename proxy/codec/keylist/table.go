package keylist

import (
	"bytes"
	"fmt"
)

// A table holds the lists that were kept last, in their order, and forgets the oldest when
// it is full. Two tables with the same limits that keep the same lists hold the same lists,
// so that an age names the same list at both ends.
//
// It holds that kept-oldest lists are there, of bytes in all, in a ring indexed by serial
// number.
type table struct {
	limits Limits
	lists  [][]byte // a ring of limits.TableLists, made with the first list
	kept   uint64   // lists kept so far; list s lies in lists[s % len(lists)]
	oldest uint64   // the first that is still there
	bytes  int      // of all lists there
	spare  []byte   // room of a list that was forgotten
}

// fits reports whether a list may be kept: it takes at most an eighth of the table, so that
// one list cannot evict all others.
func (t *table) fits(list []byte) bool {
	return t.limits.TableLists > 0 && len(list) <= t.limits.TableBytes/8
}

// cost is the memory that keeping a list takes.
func (t *table) cost(list []byte) int { return len(list) }

// keep puts a copy of the list into the table, after forgetting the oldest ones as needed,
// and returns its serial number.
func (t *table) keep(list []byte) uint64 {
	if t.lists == nil {
		t.lists = make([][]byte, t.limits.TableLists)
	}
	for t.kept-t.oldest == uint64(len(t.lists)) || t.bytes+len(list) > t.limits.TableBytes {
		t.forget()
	}
	room := t.spare
	if cap(room) < len(list) {
		room = make([]byte, 0, len(list))
	} else {
		t.spare = nil
	}
	t.lists[t.kept%uint64(len(t.lists))] = append(room[:0], list...)
	t.bytes += len(list)
	t.kept++
	return t.kept - 1
}

// forget drops the oldest list.
func (t *table) forget() {
	slot := &t.lists[t.oldest%uint64(len(t.lists))]
	t.bytes -= len(*slot)
	// Memory much larger than lists are now would be held for nothing.
	if cap(*slot) > cap(t.spare) || cap(t.spare) > 4*cap(*slot) {
		t.spare = *slot
	}
	*slot = nil
	t.oldest++
}

// list returns the list of a serial number.
func (t *table) list(serial uint64) []byte { return t.lists[serial%uint64(len(t.lists))] }

// byAge returns the list that was kept age lists before the newest.
func (t *table) byAge(age uint64) ([]byte, error) {
	if age >= t.kept-t.oldest {
		return nil, fmt.Errorf("%w: a reference to list %d of %d", ErrCorrupt, age, t.kept-t.oldest)
	}
	return t.list(t.kept - 1 - age), nil
}

// A finder finds a list in a table by its fingerprint. Only the encoder needs one.
type finder struct {
	serials map[uint64]uint64 // by fingerprint, the newest list that has it
}

// find returns the serial number of a list if the table has it. Fingerprints collide, so
// the lists are compared.
func (f *finder) find(t *table, print uint64, list []byte) (serial uint64, ok bool) {
	serial, ok = f.serials[print]
	if !ok || serial < t.oldest || !bytes.Equal(t.list(serial), list) {
		return 0, false
	}
	return serial, true
}

// rememberList notes where a list was kept. Once entries of forgotten lists may be the
// larger part it drops them.
func (f *finder) rememberList(t *table, print, serial uint64) {
	if f.serials == nil {
		f.serials = make(map[uint64]uint64)
	}
	f.serials[print] = serial
	if len(f.serials) > 2*t.limits.TableLists {
		for p, s := range f.serials {
			if s < t.oldest {
				delete(f.serials, p)
			}
		}
	}
}

// fingerprint mixes the length and a few bytes of a list. It need not be strong, since
// lists with the same one are compared in full; it must be cheap, since every list is
// looked up.
func fingerprint(list []byte) uint64 {
	const multiplier = 0x9e3779b97f4a7c15
	print := uint64(len(list)) * multiplier
	n := count(list)
	if n == 0 {
		for _, b := range list {
			print = (print ^ uint64(b)) * multiplier
		}
		return print
	}
	const samples = 8
	for s := range samples {
		print ^= keyAt(list, s*(n-1)/(samples-1))
		print *= multiplier
		print ^= print >> 29
	}
	return print
}
