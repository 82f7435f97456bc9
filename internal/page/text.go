package page

import "fmt"

// BytesText formats a number of bytes in decimal units, with one digit after the point.
func BytesText(bytes float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if bytes >= unit.of {
			return fmt.Sprintf("%.1f %s", bytes/unit.of, unit.name)
		}
	}
	return fmt.Sprintf("%.0f bytes", bytes)
}
