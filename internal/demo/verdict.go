package demo

import (
	"fmt"
	"slices"
)

// Verdict says in one sentence what the demo has measured, good or bad; empty without a
// baseline and a phase to compare with it.
func Verdict(results []Result) string {
	find := func(phase string) *Result {
		at := slices.IndexFunc(results, func(r Result) bool { return r.Phase == phase })
		if at < 0 {
			return nil
		}
		return &results[at]
	}
	base := find("baseline")
	if base == nil {
		return ""
	}
	text := ""
	if r := find("placement"); r != nil {
		text = fmt.Sprintf("Without loss psidecar made the job %s with %s", faster(base, r), fewer(base, r))
	}
	if r := find("threshold"); r != nil {
		if text == "" {
			text = "psidecar made the job "
		} else {
			text += "; with 99% of pushed values held back until they add up, "
		}
		text += fmt.Sprintf("%s with %s", faster(base, r), fewer(base, r))
		if r.Accuracy != nil && base.Accuracy != nil {
			text += fmt.Sprintf(", accuracy %.2f%% instead of %.2f%%", 100**r.Accuracy, 100**base.Accuracy)
		}
	}
	if text == "" {
		return ""
	}
	return text + "."
}

// fewer compares numbers of bytes in words.
func fewer(before, after *Result) string {
	if after.BytesPerStep <= 0 || before.BytesPerStep <= 0 {
		return "bytes that could not be compared"
	}
	if ratio := before.BytesPerStep / after.BytesPerStep; ratio >= 0.995 {
		return fmt.Sprintf("%.1f times fewer bytes", ratio)
	}
	return fmt.Sprintf("%.2f times as many bytes", after.BytesPerStep/before.BytesPerStep)
}

// faster compares speeds in words.
func faster(before, after *Result) string {
	if before.StepsPerSecond <= 0 {
		return "not measurably faster"
	}
	ratio := after.StepsPerSecond / before.StepsPerSecond
	if ratio < 0.95 {
		return fmt.Sprintf("%.2f times as fast, which is slower,", ratio)
	}
	return fmt.Sprintf("%.1f times as fast", ratio)
}
