package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// agentURL is the default of --agent.
const agentURL = "http://127.0.0.1:9810"

// ask gets a JSON answer of an agent, proxy or planner into v.
func ask(ctx context.Context, base, path string, query url.Values, v any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
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
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("nobody answers at %s (is it running, and is that its address?): %w", base, err)
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
			failed.Error = response.Status
		}
		return fmt.Errorf("%s: %s", where, failed.Error)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s: not psidecar's answer: %w", where, err)
	}
	return nil
}
