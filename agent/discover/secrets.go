package discover

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Secrets reads and writes Secrets of the namespace of this process's pod, or of KUBECONFIG.
// psidecar certs keeps a chart's certificates there.
type Secrets struct {
	namespace string
	client    *rest.RESTClient
}

// secret is Secret of core/v1 with the fields that are used here.
type secret struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Type string            `json:"type,omitempty"`
	Data map[string][]byte `json:"data"`
}

// OpenSecrets returns the Secrets of a namespace. It does not connect.
func OpenSecrets() (*Secrets, error) {
	config, err := Cluster()
	if err != nil {
		return nil, err
	}
	namespace, _, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).Namespace()
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	core, err := newEventClient(config, client)
	if err != nil {
		return nil, err
	}
	return &Secrets{namespace, core}, nil
}

// Read returns what a Secret holds, or nil if there is none of the name.
func (s *Secrets) Read(ctx context.Context, name string) (map[string][]byte, error) {
	body, err := s.client.Get().Namespace(s.namespace).Resource("secrets").Name(name).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	var have secret
	if err == nil {
		err = json.Unmarshal(body, &have)
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s: %w", s.namespace, name, err)
	}
	return have.Data, nil
}

// Create makes a Secret; one of the name that is there is an error.
func (s *Secrets) Create(ctx context.Context, name, kind string, data map[string][]byte) error {
	return s.send(s.client.Post(), "making", ctx, name, kind, data)
}

// Replace replaces what a Secret holds.
func (s *Secrets) Replace(ctx context.Context, name, kind string, data map[string][]byte) error {
	return s.send(s.client.Put().Name(name), "replacing", ctx, name, kind, data)
}

func (s *Secrets) send(r *rest.Request, doing string, ctx context.Context, name, kind string, data map[string][]byte) error {
	body, err := json.Marshal(secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace},
		Type: kind, Data: data,
	})
	if err == nil {
		err = r.Namespace(s.namespace).Resource("secrets").SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("%s Secret %s/%s: %w", doing, s.namespace, name, err)
	}
	return nil
}
