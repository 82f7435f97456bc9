package bpf

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"
)

// Sampling says of which messages the kernel copies what. It decides by the
// request's timestamp alone, in windows of consecutive timestamps, so that
// every host and both halves of a request choose alike: the steps of a window
// are watched whole or not at all. The zero value copies the metas of all
// messages and the keys of all requests.
type Sampling struct {
	// Window is the number of consecutive timestamps that are sampled
	// together; 0 means 16.
	Window uint32
	// OneIn samples one in that many windows; 0 and 1 mean all of them. Of
	// each OneIn windows that follow each other exactly one is sampled, which
	// one is left to chance, where OneIn is a power of two; and where two rates
	// are, the denser takes all that the sparser takes.
	OneIn uint32
	// SampledMetasOnly leaves out the meta frames of requests and answers in
	// windows that are not sampled. Control messages are always copied.
	SampledMetasOnly bool
	// AnswerKeys copies the key frames of pull answers too. They repeat the
	// request's, so it is of use only where requests are not seen.
	AnswerKeys bool
	// ValueBytes copies the first bytes of the value frames of pushes, that
	// many at most, in one of ValuesOneIn (0 and 1: all) sampled windows.
	// 0 copies no values.
	ValueBytes  uint32
	ValuesOneIn uint32
}

const defaultWindow = 16

// Includes reports whether requests with that timestamp, and their answers,
// are sampled. The kernel computes the same.
func (s Sampling) Includes(timestamp int32) bool {
	s = s.normal()
	return taken(uint32(timestamp)/s.Window, s.OneIn)
}

// IncludesValues reports whether the values of pushes with that timestamp are
// copied.
func (s Sampling) IncludesValues(timestamp int32) bool {
	s = s.normal()
	return s.ValueBytes > 0 && s.Includes(timestamp) && windowHash(^(uint32(timestamp)/s.Window))%s.ValuesOneIn == 0
}

func (s Sampling) String() string {
	s = s.normal()
	return fmt.Sprintf("one in %d windows of %d timestamps", s.OneIn, s.Window)
}

func (s Sampling) normal() Sampling {
	if s.Window == 0 {
		s.Window = defaultWindow
	}
	s.OneIn = max(s.OneIn, 1)
	s.ValuesOneIn = max(s.ValuesOneIn, 1)
	return s
}

// taken reports whether one in n takes this window; taken in meta.h is the same.
func taken(window, n uint32) bool {
	for i := uint32(0); n > 1 && n&1 == 0; i++ {
		if (window^windowHash(window>>1+i*0x51ed270b))&1 == 1 {
			return false
		}
		window, n = window>>1, n>>1
	}
	return n <= 1 || windowHash(window)%n == 0
}

// windowHash spreads consecutive window numbers, the first of which is to be
// no more likely than others; window_hash in meta.h is the same.
func windowHash(window uint32) uint32 {
	h := (window + 0x7f4a7c15) * 0x9e3779b1
	h ^= h >> 15
	h *= 0x85ebca77
	return h ^ h>>13
}

// SetRate samples the messages of one stream otherwise than [Sampling] says for
// all: one in oneIn windows, a power of two, of window timestamps. It holds until
// the stream is reported as gone, or ResetRate.
func (c *Capture) SetRate(id StreamID, window, oneIn uint32) error {
	if window == 0 || bits.OnesCount32(oneIn) != 1 {
		return fmt.Errorf("sampling one in %d windows of %d timestamps of stream %s: want a power of two, and a window", oneIn, window, id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil // nothing is copied any more
	}
	rate := captureRate{Window: window, Shift: uint32(bits.TrailingZeros32(oneIn))}
	if err := c.objects.rates.Put(uint64(id), rate); err != nil {
		return fmt.Errorf("setting the sampling of stream %s: %w", id, err)
	}
	c.rated[id] = true
	return nil
}

// ResetRate samples the stream as all.
func (c *Capture) ResetRate(id StreamID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || !c.rated[id] {
		return nil
	}
	delete(c.rated, id)
	if err := c.objects.rates.Delete(uint64(id)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("resetting the sampling of stream %s: %w", id, err)
	}
	return nil
}

// resetRates resets those of streams that there are no more.
func (c *Capture) resetRates(known func(StreamID) bool) error {
	c.mu.Lock()
	var gone []StreamID
	for id := range c.rated {
		if !known(id) {
			gone = append(gone, id)
		}
	}
	c.mu.Unlock()
	for _, id := range gone {
		if err := c.ResetRate(id); err != nil {
			return err
		}
	}
	return nil
}
