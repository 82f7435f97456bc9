package prerun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"
)

// checkpointMagic begins the file of a [Checkpoint]. It is followed by the CRC-32C of the state (4
// bytes) and its length (8 bytes), both in little endian, and the state.
var checkpointMagic = []byte("psidecar partition state 1\n")

// checkpointEvery is the default of Every: an interruption loses at most that much work, and saving
// a large state takes a small part of it.
const checkpointEvery = 5 * time.Second

// A Checkpoint is a [partition.Keeper] that keeps the state in a file. The file always has a
// complete state, the last one saved or the one before. It is for one goroutine.
type Checkpoint struct {
	Path string
	// Every is the time between two saves; 0 means 5 s.
	Every time.Duration
	last  time.Time
}

// Load returns the state in the file, nil if there is no file. It refuses a damaged file and one of
// another kind: to overwrite it could destroy hours of work, or something that is not ours.
func (c *Checkpoint) Load() ([]byte, error) {
	// The first save is due one interval from now, not at once.
	c.last = time.Now()
	text, err := os.ReadFile(c.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the state of the partition: %w", err)
	}
	rest, ok := bytes.CutPrefix(text, checkpointMagic)
	if !ok {
		return nil, fmt.Errorf("%s is not the state of a partition: name another file", c.Path)
	}
	// The length is checked as well as the sum, so that a file that was cut gets the clearer
	// message.
	if len(rest) < 12 || binary.LittleEndian.Uint64(rest[4:]) != uint64(len(rest)-12) {
		return nil, fmt.Errorf("%s is damaged: its size of %d bytes does not match its header; remove it to start over", c.Path, len(text))
	}
	if binary.LittleEndian.Uint32(rest) != crc32.Checksum(rest[12:], castagnoli) {
		return nil, fmt.Errorf("%s is damaged: wrong checksum; remove it to start over", c.Path)
	}
	return rest[12:], nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Due reports whether Every has passed since the last save.
func (c *Checkpoint) Due() bool {
	every := c.Every
	if every == 0 {
		every = checkpointEvery
	}
	return time.Since(c.last) >= every
}

// Save writes the state to a temporary file in the same folder, syncs it, and renames it, so that a
// crash at any moment leaves a complete state. It is called between two sweeps, which wait for it.
func (c *Checkpoint) Save(state []byte) error {
	f, err := os.CreateTemp(filepath.Dir(c.Path), ".partition-state-*")
	if err != nil {
		return fmt.Errorf("saving the state of the partition: %w", err)
	}
	defer os.Remove(f.Name()) // which fails where it was renamed
	head := binary.LittleEndian.AppendUint32(bytes.Clone(checkpointMagic), crc32.Checksum(state, castagnoli))
	head = binary.LittleEndian.AppendUint64(head, uint64(len(state)))
	_, err = f.Write(append(head, state...))
	if err == nil {
		err = f.Sync() // or a crash of the machine may leave a name without its bytes
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), c.Path)
	}
	if err != nil {
		return fmt.Errorf("saving the state of the partition in %s: %w", c.Path, err)
	}
	c.last = time.Now()
	return nil
}
