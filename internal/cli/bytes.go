package cli

import (
	"fmt"
	"strings"
)

// ParseBytes parses a whole number of bytes, KiB, MiB or GiB, such as 4GiB. Fractions and
// decimal units are refused, since guessing what was meant could be wrong by a factor.
func ParseBytes(text string) (int64, error) {
	number, unit := text, int64(1)
	for suffix, bytes := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			number, unit = rest, bytes
		}
	}
	var n int64
	if _, err := fmt.Sscanf(number+"\n", "%d\n", &n); err != nil || n < 0 || n > 1<<62/unit {
		return 0, fmt.Errorf("%q: want bytes as a whole number, or one with KiB, MiB or GiB", text)
	}
	return n * unit, nil
}
