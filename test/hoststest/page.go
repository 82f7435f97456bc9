package hoststest

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
)

// Get requests a path from a service on the host, from the host itself. An answer other than
// 200 is an error that has its beginning.
func Get(h *hosts.Host, port int, path string) ([]byte, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}}
	r, err := client.Get("http://" + h.Address(port) + path)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s%s: %s: %.500s", h.Address(port), path, r.Status, body)
	}
	return body, err
}

// Metric returns the sum of the metrics with a name, which may include labels; 0 if there is
// none.
func Metric(h *hosts.Host, port int, name string) (sum float64, err error) {
	text, err := Get(h, port, "/metrics")
	if err != nil {
		return 0, err
	}
	return SumMetrics(text, name)
}

// SumMetrics is [Metric] for a text in Prometheus' format.
func SumMetrics(text []byte, name string) (sum float64, err error) {
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err != nil {
			return 0, fmt.Errorf("metric %q: %w", line, err)
		}
		sum += value
	}
	return sum, nil
}
