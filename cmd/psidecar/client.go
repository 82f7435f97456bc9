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

// ask gets a JSON answer of an agent or planner into v.
func ask(ctx context.Context, agent, path string, query url.Values, v any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if !strings.Contains(agent, "://") {
		agent = "http://" + agent
	}
	where := strings.TrimSuffix(agent, "/") + path
	if len(query) > 0 {
		where += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return usagef("--agent %q: %w", agent, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking the agent (is it running, and at --agent?): %w", err)
	}
	defer response.Body.Close()
	const limit = 256 << 20
	body, err := io.ReadAll(io.LimitReader(response.Body, limit))
	if err != nil {
		return fmt.Errorf("reading the agent's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var failed struct{ Error string }
		if json.Unmarshal(body, &failed) != nil || failed.Error == "" {
			failed.Error = response.Status
		}
		return fmt.Errorf("%s: %s", where, failed.Error)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s: not an agent's answer: %w", where, err)
	}
	return nil
}
