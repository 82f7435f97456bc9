package shared

import (
	"encoding/binary"
	"slices"
	"time"
)

// This file sends answers by key. Workers that compute with different samples pull different
// lists of keys, and so never the same answer twice, but many of the same values. Both ends keep
// the last value of each key in a [table]. An answer has a bit for each key, and the values that
// differ from those. It becomes an entry like any other when it arrives: what a number refers to
// does not depend on the table any more.
//
// The keys themselves are not on the lane. The receiving end has them, since it has sent the
// request for them.

// ByKeys are the keys of an answer that may be sent by key.
type ByKeys struct {
	Keys []byte // the body of the keys frame
	// Link and Request name the answered request, whose keys the other end has.
	Link, Request uint64
	// Pack returns the form and the bytes in which some of the answer's values are to go over the
	// lane, in memory of its own.
	Pack func(values []byte) (form byte, packed []byte)
}

// kinds of tables: of an app's values of a width.
type tableKind struct {
	app   int32
	width int
}

// tabled is a table at the sending end, and whether it pays. The Source's coding guards the table
// itself, its lock the rest.
type tabled struct {
	*table
	id      uint64
	valid   bool // the lane's other end has the same
	keysFor int  // answers of all processes may have so many keys before a larger one is made
	limit   int  // what was granted when it had to be smaller than it should be; 0: it is not
	scale   int  // what worth asked for when it was made
	worth   worth
}

// worth says whether answers are to be sent by key: while a round of them spares too little, they
// are not for a while. It also finds the size of a table from which on a larger one spares no more.
// The zero worth tries.
type worth struct {
	answers, keys, newKeys, bytes, spared int // in this round; newKeys were not in the table

	perKey [recentTimes]float64 // nanoseconds of encoding, of the last answers of this round, a ring
	warm   bool                 // a round has passed since the table was new, or out of use
	scale  int                  // the table is to be 2^scale times as large as for an answer of each process
	larger bool                 // it has been enlarged after the round before
	full   bool                 // a larger one did not spare more
	before float64              // part of the bytes that was spared before it was enlarged
	skip   int                  // answers to skip from now on
	wait   int                  // the last pause, in answers
}

const (
	// A round has roundOf answers for each process, and pays if it spares a sparesFrom-th of
	// their bytes, and the link more time than both ends take. Looking up a key takes them 70 ns
	// in all: of values of 4 bytes, an eighth takes as long as sending it at 60 Mbit/s, and a half
	// at 230 Mbit/s.
	roundOf, sparesFrom = 16, 8
	// recentTimes is of how many answers the time is kept; bothEnds is for decoding, which takes as
	// long as encoding.
	recentTimes, bothEnds = 16, 2
	// A table is enlarged if more than a newFrom-th of the keys were not in it, and stays so if that
	// spares a moreFrom-th of the bytes more. Processes may pull many lists in each step.
	newFrom, moreFrom, mostScale = 8, 100, 8
	// fewestPause and mostPause bound the pause after a round that did not pay, in answers.
	fewestPause, mostPause = 64, 8192
	// byKeyHead is how many bytes an answer by key takes at most beside bits and values.
	byKeyHead = 32
	// tablesOf is the part of the memory that all tables may have: a tablesOf-th.
	tablesOf = 4
	// someKnown says in the byte of the form that there are bits; without it no value was known.
	someKnown byte = 1 << 4
)

// may reports whether an answer is to be sent by key.
func (w *worth) may() bool {
	if w.skip > 0 {
		w.skip--
		return false
	}
	return true
}

// A byKeyAnswer is what an answer by key took.
type byKeyAnswer struct {
	keys, newKeys, bytes, spared int
	took                         time.Duration // of encoding
}

// learn records an answer, of a round of so many. perByte is how many nanoseconds the link takes for
// a byte; 0: that is unknown, or does not matter.
func (w *worth) learn(a byKeyAnswer, round int, perByte float64) {
	w.perKey[w.answers%recentTimes] = float64(a.took) / float64(a.keys)
	w.answers, w.keys, w.newKeys, w.bytes, w.spared = w.answers+1, w.keys+a.keys, w.newKeys+a.newKeys, w.bytes+a.bytes, w.spared+a.spared
	if w.answers < round {
		return
	}
	r := *w
	w.answers, w.keys, w.newKeys, w.bytes, w.spared = 0, 0, 0, 0, 0
	part := float64(r.spared) / float64(r.bytes)
	switch {
	case !w.warm:
		w.warm = true
	case w.larger && part < w.before+1./moreFrom:
		w.larger, w.full, w.warm = false, true, false
		w.scale--
	case !w.full && w.scale < mostScale && newFrom*r.newKeys > r.keys:
		w.larger, w.before, w.warm = true, part, false
		w.scale++
	case sparesFrom*r.spared < r.bytes || perByte > 0 && float64(r.spared)*perByte < r.cost():
		wait := min(max(2*w.wait, fewestPause), mostPause)
		*w = worth{scale: w.scale, wait: wait, skip: wait}
	default:
		w.larger, w.wait = false, 0
	}
}

// cost returns how many nanoseconds the round took both ends. Of the last times the first quartile
// counts: in the others the answer may have waited for a processor.
func (w *worth) cost() float64 {
	times := w.perKey
	n := min(w.answers, recentTimes)
	slices.Sort(times[:n])
	return bothEnds * times[n/4] * float64(w.keys)
}

// mayByKey reports whether an answer is to be sent by key, and returns its kind.
func (o *Outlet) mayByKey(subject Subject, keys *ByKeys) (kind tableKind, ok bool) {
	if keys == nil || subject.Keys < 2 || 8*subject.Keys != len(keys.Keys) || subject.Bytes%subject.Keys != 0 {
		return kind, false
	}
	kind = tableKind{subject.App, subject.Bytes / subject.Keys}
	if kind.width == 0 || kind.width > maxWidth {
		return kind, false
	}
	s := o.source
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.tables[kind]
	if k == nil {
		if len(s.tables) >= maxTables {
			return kind, false
		}
		k = &tabled{id: uint64(len(s.tables))}
		s.tables[kind] = k
	}
	return kind, k.worth.may()
}

// processes returns how many processes may be answered. The caller holds s.mu.
func (s *Source) processes() int { return min(max(len(s.places), 2), 64) }

// openTable returns the table of a kind for answers of so many keys, of all processes; nil if there
// is no memory for it, or no lane. The caller holds s.coding.
func (s *Source) openTable(kind tableKind, keys int) *tabled {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.tables[kind]
	if k == nil || !s.attached {
		return nil
	}
	all := keys * s.processes()
	if k.valid && all <= k.keysFor && k.scale == k.worth.scale && (k.limit == 0 || s.limit < 2*k.limit) {
		return k
	}
	s.forgetTable(k)
	setBits := min(setBitsFor(all<<k.worth.scale), maxSetBits)
	if size := tableSize(kind.width, setBits); size > s.tableRoom() {
		s.ask(tablesOf * (s.tableBytes + size))
	}
	// A smaller one has some of the keys.
	k.limit = 0
	for ; setBits > 1 && tableSize(kind.width, setBits) > s.tableRoom(); setBits-- {
		if k.limit = s.limit; ways<<setBits <= keys {
			break
		}
	}
	size := tableSize(kind.width, setBits)
	if size > s.tableRoom() || !s.makeRoom(size) {
		k.worth.skip = fewestPause
		return nil
	}
	if k.table == nil || k.size() != size {
		k.table = newTable(kind.width, setBits)
	} else {
		k.clear()
	}
	k.valid, k.scale, k.keysFor = true, k.worth.scale, max(all, k.slots()>>k.worth.scale)
	k.worth.warm = false
	s.bytes += size
	s.tableBytes += size
	s.enqueue(frame{kind: kindTable, number: k.id, width: kind.width, setBits: setBits}, 0)
	return k
}

// tableRoom returns how many bytes another table may have. The caller holds s.mu.
func (s *Source) tableRoom() int { return s.limit/tablesOf - s.tableBytes }

// forgetTable records that the other end's table is not to be used any more: it is replaced before
// it is needed again. The caller holds s.mu.
func (s *Source) forgetTable(k *tabled) {
	if k.valid {
		k.valid = false
		s.bytes -= k.size()
		s.tableBytes -= k.size()
		if s.attached {
			s.enqueue(frame{kind: kindTable, number: k.id}, 0)
		}
	}
}

// putByKey keeps an answer and queues it for the lane by key, with a reference of the Outlet's link.
// If it stays, others may be answered with it as a whole. It reports false if put does, or if there
// is no room for a table.
func (o *Outlet) putByKey(subject Subject, values []byte, keys *ByKeys, kind tableKind, stays bool) (r Referred, ok bool) {
	s := o.source
	// Answers are queued in the order in which they changed the table.
	s.coding.Lock()
	defer s.coding.Unlock()
	k := s.openTable(kind, subject.Keys)
	if k == nil {
		return r, false
	}
	began := s.now()
	known, fresh, count, newKeys := k.appendFresh(s.known[:0], s.fresh[:0], keys.Keys, values)
	s.known, s.fresh = known, fresh
	if count*kind.width <= len(known) { // the bits would take more than they spare
		count, fresh = 0, values
	}
	packed := binary.AppendUvarint(s.packed[:0], k.id)
	packed = binary.AppendUvarint(packed, keys.Link)
	packed = binary.AppendUvarint(packed, keys.Request)
	form, inner := keys.Pack(fresh)
	if form == Plain {
		inner = fresh
	}
	if count > 0 {
		form |= someKnown
	}
	packed = append(packed, form)
	if count > 0 {
		packed = append(packed, known...)
	}
	packed = append(packed, inner...)
	s.packed = packed
	a := byKeyAnswer{keys: subject.Keys, newKeys: newKeys, bytes: len(values), took: s.now().Sub(began)}
	number, onLane, ok := o.put(subject, values, ByKey, packed, k, stays)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok {
		s.forgetTable(k)
		return r, false
	}
	spared := count * kind.width
	s.counts.ByKey++
	s.counts.SparedBytes += uint64(spared)
	a.spared = max(spared-len(known)-byKeyHead, 0)
	k.worth.learn(a, roundOf*s.processes(), s.linkTime())
	return Referred{number, onLane, spared}, true
}

// linkTime returns how many nanoseconds the link takes for a byte, or 0.
func (s *Source) linkTime() float64 {
	if s.perByte == nil || s.trial == nil {
		return 0
	}
	d, _ := s.perByte()
	return d
}

// loseTables records that the other end has no tables. The caller holds s.mu.
func (s *Source) loseTables() {
	for _, k := range s.tables {
		k.valid = false
	}
	s.bytes -= s.tableBytes
	s.tableBytes = 0
}
