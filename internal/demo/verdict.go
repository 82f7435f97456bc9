package demo

import (
	"fmt"
	"slices"
)

// Verdict describes in sentences what the demo has measured, good or bad. It says nothing about
// phases without a result.
func Verdict(results []Result, cores int) []string {
	find := func(phase string) *Result {
		at := slices.IndexFunc(results, func(r Result) bool { return r.Phase == phase })
		if at < 0 {
			return nil
		}
		return &results[at]
	}
	base := find("baseline")
	if base == nil {
		return nil
	}
	var all []string
	slower := false
	add := func(format string, before, after *Result) {
		slower = slower || after.StepsPerSecond < 0.95*before.StepsPerSecond
		all = append(all, fmt.Sprintf(format, "psidecar sent "+fewer(before.BytesPerStep, after.BytesPerStep)+" and made the job "+faster(before.StepsPerSecond, after.StepsPerSecond)))
	}
	if r := find("compact"); r != nil {
		add("Without loss %s.", base, r)
	}
	if r := find("reroute"); r != nil && r.Home != nil {
		add("Moving keys to their users, %s, compared with the same job with all keys at home.", r.Home, r)
	}
	if r := find("threshold"); r != nil {
		ending := "."
		if r.Accuracy != nil && base.Accuracy != nil {
			ending = fmt.Sprintf("; accuracy %.2f%%%% instead of %.2f%%%%.", 100**r.Accuracy, 100**base.Accuracy)
		}
		add("With data and keys placed, and 99%% of pushed values held back until they add up, %s"+ending, base, r)
	}
	// Said only where it applies, and once.
	if slower {
		all = append(all, fmt.Sprintf("If it is slower: all hosts and their proxies share this machine's %d cores; psidecar gains time where the network is the bottleneck.", cores))
	}
	return all
}

// fewer compares numbers of bytes in words.
func fewer(before, after float64) string {
	if after <= 0 || before <= 0 {
		return "bytes that could not be compared"
	}
	if ratio := before / after; ratio >= 0.995 {
		return fmt.Sprintf("%.1f times fewer bytes", ratio)
	}
	return fmt.Sprintf("%.2f times as many bytes", after/before)
}

// faster compares speeds in words.
func faster(before, after float64) string {
	if before <= 0 {
		return "not measurably faster"
	}
	ratio := after / before
	if ratio < 0.95 {
		return fmt.Sprintf("%.2f times as fast, which is slower", ratio)
	}
	return fmt.Sprintf("%.1f times as fast", ratio)
}
