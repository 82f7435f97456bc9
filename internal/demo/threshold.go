package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// sparsity is the fraction of pushed values that is held back in the last phase.
const sparsity = 0.99

// threshold runs the job of the placement phase again, with proxies that send only the largest
// values of each push at once. Towards the end they send everything, so the final model lacks
// nothing. Between two pulls most parameters then stay the same, and are not sent again.
func (s *stage) threshold(ctx context.Context) (Result, error) {
	if err := s.startProxies(ctx, append(s.placed, "--handler", "add")...); err != nil {
		return Result{}, err
	}
	// Set over the control sockets rather than by flags, as a user would for a job that runs.
	rules := []values.Rule{{Threshold: sparsity, Until: s.options.Steps - s.options.Steps/30, Unchanged: true}}
	for _, p := range s.fleet.proxies {
		if err := p.putJSON(ctx, "/api/v1/codecs", rules); err != nil {
			return Result{}, err
		}
	}
	result, err := s.measureJob(ctx, "threshold")
	if err != nil {
		return Result{}, err
	}
	return result, s.unguarded(ctx)
}

// putJSON sends v as JSON to a proxy's control socket, as soon as it accepts orders.
func (s *service) putJSON(ctx context.Context, path string, v any) (err error) {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var response *http.Response
	err = s.await(ctx, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://control"+path, bytes.NewReader(body))
		if err == nil {
			response, err = control.Client(s.control).Do(request)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("telling %s: %w", s.name, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return fmt.Errorf("telling %s at %s: %s: %s", s.name, path, response.Status, why)
	}
	return nil
}
