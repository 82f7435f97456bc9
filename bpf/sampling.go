package bpf

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"
)

// Sampling says what the kernel copies of which messages. It decides by the request's timestamp
// alone, in windows of consecutive timestamps, so that every host, and both halves of a
// request, decide alike: the steps of a window are sampled completely or not at all. The zero
// value copies the metas of all messages and the keys of all requests.
type Sampling struct {
	// Window is the number of consecutive timestamps that are sampled
	// together; 0 means 16.
	Window uint32
	// OneIn samples one in so many windows; 0 and 1 sample all. If it is a power of two,
	// exactly one of each OneIn consecutive windows is sampled, at random; and of two such
	// rates, the denser one includes every window of the sparser one.
	OneIn uint32
	// AnswerKeys copies the key frames of pull answers too. They repeat those of the request,
	// so it is useful only where requests are not seen.
	AnswerKeys bool
}

const defaultWindow = 16

// Includes reports whether requests with a timestamp, and their answers, are sampled. The
// kernel computes the same function.
func (s Sampling) Includes(timestamp int32) bool {
	s = s.normal()
	return taken(uint32(timestamp)/s.Window, s.OneIn)
}

func (s Sampling) String() string {
	s = s.normal()
	return fmt.Sprintf("one in %d windows of %d timestamps", s.OneIn, s.Window)
}

// normal replaces zeros by defaults.
func (s Sampling) normal() Sampling {
	if s.Window == 0 {
		s.Window = defaultWindow
	}
	s.OneIn = max(s.OneIn, 1)
	return s
}

// taken reports whether one in n selects a window. For each factor of two in n, one bit of the
// window number must match a hash of the bits above it, so that exactly one of the two halves
// of each aligned pair is selected, at random. taken in meta.h is the same.
func taken(window, n uint32) bool {
	for i := uint32(0); n > 1 && n&1 == 0; i++ {
		if (window^windowHash(window>>1+i*0x51ed270b))&1 == 1 {
			return false
		}
		window, n = window>>1, n>>1
	}
	return n <= 1 || windowHash(window)%n == 0
}

// windowHash mixes a window number. The constant that is added keeps window 0, with which every
// job begins, from always having the hash 0. window_hash in meta.h is the same.
func windowHash(window uint32) uint32 {
	h := (window + 0x7f4a7c15) * 0x9e3779b1
	h ^= h >> 15
	h *= 0x85ebca77
	return h ^ h>>13
}

// SetRate samples the messages of one stream at a rate of its own instead of the one set for
// all: one in oneIn windows, which must be a power of two, of window timestamps each. The stream
// and the opposite one of its socket are not looked at during a [Capture.Rest] if it is egress
// and mayRest. It stays in effect until ResetRate, or until Streams reports the stream, or the
// opposite one, as gone.
func (c *Capture) SetRate(id StreamID, window, oneIn uint32, mayRest bool) error {
	if window == 0 || bits.OnesCount32(oneIn) != 1 {
		return fmt.Errorf("sampling one in %d windows of %d timestamps of stream %s: want a power of two, and a window", oneIn, window, id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil // nothing is copied any more
	}
	rate := captureRate{Window: window, Shift: uint32(bits.TrailingZeros32(oneIn)), MayRest: uint32(flag(mayRest))}
	if err := c.objects.rates.Put(uint64(id), rate); err != nil {
		return fmt.Errorf("setting the sampling of stream %s: %w", id, err)
	}
	c.rated[id] = true
	return nil
}

// ResetRate gives a stream the common rate again.
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

// resetRates removes the rates of streams that are gone, whose entries would otherwise fill the
// map.
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

// Rest begins a rest, or ends it: meanwhile the programs let the segments of streams that may
// rest pass without looking at them. Afterwards the first segment of each stream that lost its
// frame boundary by that tells the bytes that have passed, in the offset of [KindUnsynced] and
// [KindSynced]; they are neither missed nor gaps. Connections that begin or end in a rest are
// seen all the same.
func (c *Capture) Rest(rests bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || rests == (c.config.Rests&1 == 1) {
		return nil
	}
	c.config.Rests++
	return c.putConfig()
}
