package observe

import (
	"encoding/binary"
	"slices"

	"github.com/psidecar/psidecar/agent/counts"
)

// A list holds the keys of one message, assembled from the records in which the kernel reports
// them. Arithmetic progressions stay runs, so a long list of dense keys takes no more memory
// and time than a short one.
//
// Invariants: the pieces are in message order, no two neighbours are both literal, and the sum
// of their n is len(keys); runs is the sum of their run.N.
type list struct {
	keys   []uint64 // of the literal pieces, concatenated
	pieces []piece
	split  [8]byte // the first bytes of a key that a segment boundary cut
	have   int     // bytes in split, below 8 between calls
	runs   int     // number of keys in runs
}

// A piece is a run, or, if run.N is 0, the next n literal keys of the list.
type piece struct {
	run    counts.Run
	n      int
	rising bool // the literal keys ascend strictly
}

// pieceBytes is the size of a piece in memory.
const pieceBytes = 48

// reset empties the list and keeps its buffers.
func (l *list) reset() { *l = list{keys: l.keys[:0], pieces: l.pieces[:0]} }

// len returns the number of whole keys.
func (l *list) len() int { return len(l.keys) + l.runs }

// memory returns the bytes in use, which count against heldBytes.
func (l *list) memory() int { return 8*len(l.keys) + pieceBytes*len(l.pieces) }

// ends returns the first and the last key. The list must not be empty.
func (l *list) ends() (first, last uint64) {
	first, last = l.pieces[0].run.First, l.pieces[len(l.pieces)-1].run.Last()
	if l.pieces[0].run.N == 0 {
		first = l.keys[0]
	}
	if l.pieces[len(l.pieces)-1].run.N == 0 {
		last = l.keys[len(l.keys)-1]
	}
	return first, last
}

// addBytes adds keys as they stand in a frame, 8 bytes each in little-endian order. b may begin
// and end within a key; it is copied.
func (l *list) addBytes(b []byte) {
	if l.have > 0 {
		n := copy(l.split[l.have:], b)
		if l.have += n; l.have < 8 {
			return
		}
		b = b[n:]
		l.have = 0
		l.addKey(binary.LittleEndian.Uint64(l.split[:]))
	}
	whole := len(b) &^ 7
	if whole == 8 {
		l.addKey(binary.LittleEndian.Uint64(b))
	} else if whole > 0 {
		l.addKeys(b[:whole])
	}
	l.have = copy(l.split[:], b[whole:])
}

// addKey adds a single key, which may continue a run: a segment boundary cuts keys in two, and
// the kernel reports such a key apart from the runs on either side. Without this, each boundary
// would end a run.
func (l *list) addKey(k uint64) {
	if len(l.pieces) > 0 {
		last := &l.pieces[len(l.pieces)-1]
		if last.run.N > 0 && k > last.run.Last() && k-last.run.Last() == last.run.Step {
			last.run.N++
			l.runs++
			return
		}
	}
	at := l.literal()
	at.rising = at.rising && (at.n == 0 || k > l.keys[len(l.keys)-1])
	l.keys = append(l.keys, k)
	at.n++
}

// literal returns the literal piece at the end of the list, appending one if the last is a run.
// The pointer is valid until the next piece is appended.
func (l *list) literal() *piece {
	if len(l.pieces) == 0 || l.pieces[len(l.pieces)-1].run.N > 0 {
		l.pieces = append(l.pieces, piece{rising: true})
	}
	return &l.pieces[len(l.pieces)-1]
}

// addKeys adds whole keys to the literal piece at the end and checks whether they ascend.
func (l *list) addKeys(b []byte) {
	last := l.literal()
	at := len(l.keys)
	l.keys = slices.Grow(l.keys, len(b)/8)[:at+len(b)/8]
	to := l.keys[at:]
	for i := range to {
		to[i] = binary.LittleEndian.Uint64(b[8*i : 8*i+8])
	}
	l.checkOrder(last, at)
	last.n += len(to)
}

// checkOrder updates p.rising for the keys from index at on, which have been appended to l.keys
// and are not yet counted in p.n. The first key of a piece has no predecessor in it.
func (l *list) checkOrder(p *piece, at int) {
	if p.n == 0 {
		at++
	}
	for i := at; p.rising && i < len(l.keys); i++ {
		p.rising = l.keys[i] > l.keys[i-1]
	}
}

// addRun adds a run of keys. It becomes literal keys if the caller needs them one by one, or if
// it does not ascend, since batches of counts take ascending runs only.
func (l *list) addRun(r counts.Run, oneByOne bool) {
	switch {
	case r.N == 0:
	case oneByOne || !r.Ascends():
		last, at := l.literal(), len(l.keys)
		l.keys = r.Append(l.keys)
		l.checkOrder(last, at)
		last.n += r.N
	case !l.appendRun(r):
		l.pieces = append(l.pieces, piece{run: r})
		l.runs += r.N
	}
}

// appendRun merges a run into the last piece if it continues that piece, which is a run of the
// same step or a single literal key. It reports whether it did.
func (l *list) appendRun(r counts.Run) bool {
	if len(l.pieces) == 0 {
		return false
	}
	last := &l.pieces[len(l.pieces)-1]
	before, alone := last.run, last.run.N == 0 && last.n == 1
	if alone {
		before = counts.Run{First: l.keys[len(l.keys)-1], Step: r.Step, N: 1}
	}
	if before.N == 0 || before.Step != r.Step || r.First <= before.Last() || r.First-before.Last() != r.Step {
		return false
	}
	if alone {
		l.keys = l.keys[:len(l.keys)-1]
		*last = piece{}
		l.runs++
	}
	last.run = counts.Run{First: before.First, Step: r.Step, N: before.N + r.N}
	l.runs += r.N
	return true
}
