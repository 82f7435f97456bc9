package keylist

import (
	"encoding/binary"
	"math/bits"
)

// An Encoder writes key lists for one link in one direction; see [NewEncoder]. It is not
// safe for concurrent use. Whatever Append returns must reach the [Decoder]: the state has
// moved on.
type Encoder struct {
	state      Account
	table      table
	finder     finder
	dictionary dictionary
	positions  []byte // room for split
	others     []byte // likewise
	packed     []byte // room for the other way to write a list
	misses     int    // keys that a full dictionary lacked lately, less a quarter of those it had
}

// NewEncoder returns an Encoder with empty state. It takes the memory for its state from m
// if that is not nil. When none is left it remembers nothing more, and never waits.
func NewEncoder(limits Limits, m Memory) *Encoder {
	return &Encoder{state: NewAccount(m), table: table{limits: limits}, dictionary: dictionary{limit: limits.DictionaryKeys}}
}

// Close returns all memory. The Encoder cannot be used afterwards.
func (e *Encoder) Close() { e.state.Close() }

const (
	// closeBits is how many bits a key may take as a difference before positions are tried.
	closeBits = 10
	// hitSamples is how many keys are looked up to guess whether positions pay.
	hitSamples = 64
)

// Append appends the encoded form of a list, the body of a keys frame, to dst. Any bytes
// are encoded; those that are no ascending list of keys go as they are. The list must not
// be longer than the limits' ListBytes, since a [Decoder] refuses more.
func (e *Encoder) Append(dst, list []byte) []byte {
	print := fingerprint(list)
	if serial, ok := e.finder.find(&e.table, print, list); ok {
		dst = append(dst, byte(formReference))
		return binary.AppendUvarint(dst, e.table.kept-1-serial)
	}
	// The form's byte is written last: what is kept and learned is known only then.
	at := len(dst)
	dst = append(dst, 0)
	var head form
	if len(list)%keySize != 0 || !ascending(list) {
		head = formRaw
		dst = binary.AppendUvarint(dst, uint64(len(list)))
		dst = append(dst, list...)
	} else {
		head, dst = e.appendAscending(dst, list)
	}
	if e.table.fits(list) && e.state.TryGrow(e.table.cost(list)) {
		head |= keepFlag
		before := e.table.bytes
		e.finder.rememberList(&e.table, print, e.table.keep(list))
		e.state.Shrink(before + len(list) - e.table.bytes) // of lists that were forgotten
	}
	dst[at] = byte(head)
	return dst
}

// appendAscending writes an ascending list as differences or as positions.
func (e *Encoder) appendAscending(dst, list []byte) (form, []byte) {
	width := gapBits(list)
	if width <= closeBits {
		return formDelta, appendDelta(dst, list)
	}
	if hits, tried := e.dictionary.hits(list, hitSamples); 4*hits > tried {
		return e.appendPositions(dst, list, width)
	}
	dst = appendDelta(dst, list)
	return formDelta | e.learn(list, list), dst
}

// appendPositions writes a list as positions, or as differences if those turn out shorter.
// If the dictionary learned something the form is positions in any case, since only
// d.others of the decoder says which keys are new.
func (e *Encoder) appendPositions(dst, list []byte, width int) (form, []byte) {
	e.positions, e.others = e.dictionary.split(list, e.positions[:0], e.others[:0])
	e.packed = appendDelta(e.packed[:0], e.positions)
	e.packed = appendDelta(e.packed, e.others)
	flags := e.learn(list, e.others)
	if len(e.packed) < count(list)*width/8 || flags != 0 {
		return formPositions | flags, append(dst, e.packed...)
	}
	start := len(dst)
	if dst = appendDelta(dst, list); len(dst)-start <= len(e.packed) {
		return formDelta, dst
	}
	return formPositions, append(dst[:start], e.packed...)
}

// learn adds those keys of a list that the dictionary lacks, if it has room, and returns
// the flags that say so. A full dictionary that keeps lacking more than one key in five is
// emptied: the job has turned to other keys.
func (e *Encoder) learn(list, lacking []byte) form {
	n := count(lacking)
	if e.dictionary.limit == 0 {
		return 0
	}
	if n == 0 || e.dictionary.room(n) {
		e.misses = 0
		if n == 0 || !e.learnKeys(lacking) {
			return 0
		}
		return learnFlag
	}
	// A dictionary that serves four keys of five well is kept, although the fifth
	// finds no room.
	e.misses = max(0, e.misses+n-(count(list)-n)/4)
	if e.misses < e.dictionary.limit {
		return 0
	}
	e.misses = 0
	e.state.Shrink(e.dictionary.bytes())
	e.dictionary.reset()
	if !e.dictionary.room(count(list)) || !e.learnKeys(list) {
		return resetFlag
	}
	return resetFlag | learnFlag
}

// learnKeys adds keys to the dictionary if there is memory.
func (e *Encoder) learnKeys(keys []byte) bool {
	before, cost := e.dictionary.bytes(), count(keys)*learnedBytes
	if !e.state.TryGrow(cost) {
		return false
	}
	e.dictionary.learn(keys)
	e.state.Shrink(before + cost - e.dictionary.bytes())
	return true
}

// gapBits returns about how many bits the difference of two neighbours takes after division
// by their stride.
func gapBits(list []byte) int {
	n := count(list)
	if n < 2 {
		return 64
	}
	stride := strideOf(list)
	return bits.Len64((keyAt(list, n-1)-keyAt(list, 0))/uint64(n-1)/stride) + 1
}
