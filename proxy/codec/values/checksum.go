package values

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// checksum chains all parts of copied values on a link so far, and a piece of the copy
// after each of them: another piece each time, so that every piece of a copy is looked at
// from time to time. The ends compute it independently; a difference ends the link, and
// with the next one all values come whole.
type checksum struct{ sum uint64 }

// checkBytes is how long a piece of a copy is. Hashing all of a large copy with each part
// would cost more than the part itself.
const checkBytes = 1024

// addPart adds a part and the values that it changed, and returns the lower half of the
// sum.
func (c *checksum) addPart(part []byte, t *copyTable, values []byte) uint32 {
	var h xxhash.Digest
	h.Reset()
	var before [8]byte
	binary.LittleEndian.PutUint64(before[:], c.sum)
	h.Write(before[:])
	h.Write(part)
	if pieces := len(values) / checkBytes; pieces > 0 {
		at := t.parts % pieces * checkBytes
		values = values[at : at+checkBytes]
	}
	h.Write(values)
	t.parts++
	c.sum = h.Sum64()
	return uint32(c.sum)
}

// append appends the sum to a part that begins at head[from:].
func (c *checksum) append(head []byte, from int, t *copyTable, values []byte) []byte {
	return binary.LittleEndian.AppendUint32(head, c.addPart(head[from:], t, values))
}
