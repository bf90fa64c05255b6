"""Evidence: figures of others beside ours, as the package `evidence` of the checkout wrote them
down last, and what explains them."""
