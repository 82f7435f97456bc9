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

// checkpointMagic begins a file of a [Checkpoint]; its CRC-32C (4 bytes) and the
// length of the state (8) follow, then the state.
var checkpointMagic = []byte("psidecar partition state 1\n")

const checkpointEvery = 5 * time.Second

// A Checkpoint is a [partition.Keeper] that keeps the state in a file, which is
// at any moment as it was saved last, or the time before.
type Checkpoint struct {
	Path  string
	Every time.Duration // between two savings; 0: 5 s
	last  time.Time
}

// Load returns the state in the file, nil where there is none.
func (c *Checkpoint) Load() ([]byte, error) {
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
	if len(rest) < 12 || binary.LittleEndian.Uint64(rest[4:]) != uint64(len(rest)-12) {
		return nil, fmt.Errorf("%s is damaged: it has %d bytes, not as many as it says; remove it to start anew", c.Path, len(text))
	}
	if binary.LittleEndian.Uint32(rest) != crc32.Checksum(rest[12:], castagnoli) {
		return nil, fmt.Errorf("%s is damaged: it does not fit its checksum; remove it to start anew", c.Path)
	}
	return rest[12:], nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Due reports whether it is time to save again.
func (c *Checkpoint) Due() bool {
	every := c.Every
	if every == 0 {
		every = checkpointEvery
	}
	return time.Since(c.last) >= every
}

// Save writes the state beside the file and puts it in the file's place.
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
