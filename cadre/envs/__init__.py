"""The contract of environments: what declares one, makes its episodes, wraps them and checks them."""
