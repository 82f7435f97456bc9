package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/control"
)

// agentURL is the default of --agent.
const agentURL = "http://127.0.0.1:9810"

// ask gets a JSON answer of an agent, proxy or planner into v; a base unix:PATH
// is a proxy's control socket.
func ask(ctx context.Context, base, path string, query url.Values, v any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	client := http.DefaultClient
	if path, ok := strings.CutPrefix(base, "unix:"); ok {
		client, base = control.Client(path), "http://"+filepath.Base(path)
	}
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	where := strings.TrimSuffix(base, "/") + path
	if len(query) > 0 {
		where += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return usagef("address %q: %w", base, err)
	}
	response, err := client.Do(request)
	if err != nil {
		if why := notHTTP(base, err); why != "" {
			return fmt.Errorf("%s: %s (%w)", base, why, err)
		}
		return fmt.Errorf("nobody answers at %s (is it running, and is that its address%s?): %w", base, atPort(base), err)
	}
	defer response.Body.Close()
	const limit = 256 << 20
	body, err := io.ReadAll(io.LimitReader(response.Body, limit))
	if err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var failed struct{ Error string }
		if json.Unmarshal(body, &failed) != nil || failed.Error == "" {
			failed.Error = fmt.Sprintf("%s: %.300q%s", response.Status, body, atPort(base))
		}
		if response.StatusCode == http.StatusNotFound && strings.HasPrefix(failed.Error, "nothing is served at ") {
			failed.Error += ": this is another part of psidecar than the one that is asked for" + atPort(base)
		}
		return fmt.Errorf("%s: %s", where, asFlags(failed.Error, query))
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s: not psidecar's answer: %w%s", where, err, atPort(base))
	}
	return nil
}
