package observe

import (
	"encoding/binary"
	"slices"

	"github.com/psidecar/psidecar/agent/counts"
)

// A list is the keys of one message, put together from the pieces in which the
// kernel tells them. Runs stay runs, so that a long list of dense keys takes
// no more memory and time than a short one.
type list struct {
	keys   []uint64 // of the pieces that are no runs, one piece after the other
	pieces []piece
	split  [8]byte // the key that the next bytes go on with
	have   int     // bytes of it
	runs   int     // keys in runs
}

// A piece is a run, or, where run.N is 0, the next n of the list's keys.
type piece struct {
	run    counts.Run
	n      int
	rising bool // these ascend strictly
}

const pieceBytes = 48

// reset empties the list, but keeps its memory.
func (l *list) reset() { *l = list{keys: l.keys[:0], pieces: l.pieces[:0]} }

// len returns how many keys there are.
func (l *list) len() int { return len(l.keys) + l.runs }

// memory returns the memory that is in use.
func (l *list) memory() int { return 8*len(l.keys) + pieceBytes*len(l.pieces) }

// ends returns the list's first and last key, of which there must be one.
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

// addBytes adds keys as they stand in a frame. They may be cut in two between
// calls.
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

// addKey adds a key that may go on with a run: segments cut keys in two, and
// the kernel tells such a key alone.
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

// literal returns the piece that takes the next keys one by one.
func (l *list) literal() *piece {
	if len(l.pieces) == 0 || l.pieces[len(l.pieces)-1].run.N > 0 {
		l.pieces = append(l.pieces, piece{rising: true})
	}
	return &l.pieces[len(l.pieces)-1]
}

// addKeys adds whole keys, and looks whether they ascend.
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

// checkOrder finds out whether the piece still ascends with the keys from number at
// on, which are being added to it.
func (l *list) checkOrder(p *piece, at int) {
	if p.n == 0 {
		at++
	}
	for i := at; p.rising && i < len(l.keys); i++ {
		p.rising = l.keys[i] > l.keys[i-1]
	}
}

// addRun adds a run of keys, as such unless they are wanted one by one or do
// not ascend.
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

// appendRun adds the run to the piece before it, which it goes on with: a run, or
// a single key.
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
