package bpf

import "fmt"

// Sampling says of which messages the kernel copies what. It decides by the
// request's timestamp alone, in windows of consecutive timestamps, so that
// every host and both halves of a request choose alike: the steps of a window
// are watched whole or not at all. The zero value copies the metas of all
// messages and the keys of all requests.
type Sampling struct {
	// Window is the number of consecutive timestamps that are sampled
	// together; 0 means 16.
	Window uint32
	// OneIn samples one in that many windows; 0 and 1 mean all of them.
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
	return windowHash(uint32(timestamp)/s.Window)%s.OneIn == 0
}

// IncludesValues reports whether the values of pushes with that timestamp are
// copied.
func (s Sampling) IncludesValues(timestamp int32) bool {
	s = s.normal()
	h := windowHash(uint32(timestamp) / s.Window)
	return s.ValueBytes > 0 && h%s.OneIn == 0 && h/s.OneIn%s.ValuesOneIn == 0
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

// windowHash spreads consecutive window numbers, the first of which is to be
// no more likely than others; window_hash in meta.h is the same.
func windowHash(window uint32) uint32 {
	h := (window + 0x7f4a7c15) * 0x9e3779b1
	h ^= h >> 15
	h *= 0x85ebca77
	return h ^ h>>13
}
