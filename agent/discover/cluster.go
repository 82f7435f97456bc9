package discover

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Cluster returns the API server's configuration, from the pod's service account if this process
// runs in one, else from KUBECONFIG or the default kubeconfig. It reads files only and does not
// connect.
func Cluster() (*rest.Config, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("looking for a cluster, of this pod or of KUBECONFIG: %w", err)
	}
	return config, nil
}
